"""Pages of the documentation as tests read them: fenced blocks, the commands in them, and what marks them.

A comment right before a block says what becomes of it:
<!-- not run: needs a Docker engine -->                 its commands are checked, not run; why
<!-- run in: tests/local/test_serving_local.py -->      the same, and the test that does run it
<!-- file: trainer/sync/sign_sgd.py -->                 it is this file; the page's test puts it there
Other blocks of sh, console and python run in tests/local/test_documented_commands.py, those of a page in one folder.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
)
RUNNABLE = ("sh", "console", "python")
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|run in|file): (?P<what>[^\n]*?) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_OPERATORS = ("&&", "||", "|", ";", "&")


@dataclass(frozen=True)
class Block:
    """One fenced block. `mark` and `what`: the comment before it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str | None = None
    what: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def script(self) -> str:
        """Its commands, without the prompts and the output that a console shows."""
        if self.language != "console":
            return self.text
        return "".join(line[2:] + "\n" for line in self.text.splitlines() if line.startswith("$ "))

    def commands(self) -> Iterator[list[str]]:
        """Each simple command of a shell's block, as words."""
        for line in self.script.replace("\\\n", " ").replace("|\n", "| ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            command: list[str] = []
            for word in lexer:
                if word in _OPERATORS:
                    yield command
                    command = []
                else:
                    command.append(word)
            if command:
                yield command


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page."""
    text = page.read_text()
    return [
        Block(page, text[: m.start("language")].count("\n") + 1, m["language"], m["text"], m["mark"], m["what"] or "")
        for m in _BLOCK.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text())
