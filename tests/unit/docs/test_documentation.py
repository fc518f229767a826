"""The documentation: every block is checked or says why not, and what the pages state of the code is so."""

import ast
import json
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from documentation import PAGES, ROOT, RUNNABLE, blocks, prose

from docs.generated.commands import make_targets, target_of
from monitor import cli, toml
from monitor.capabilities import RUNTIMES
from monitor.cluster.settings import ClusterSettings
from monitor.commands import COMMANDS, TAKES_A_RUN
from monitor.conditions.conditions import Conditions
from monitor.errors import UserError, refuse_unknown
from monitor.experiments import compare_command, preset, sweep_command
from monitor.experiments.cells import product
from monitor.results.result import Result
from monitor.run.request import Request
from trainer.registry import SYNCS, Strategy
from trainer.spec import SpecError

LANGUAGES = {*RUNNABLE, "toml", "json", "text", "toctree"}
MOST_LINES, WIDTH = 250, 100
TARGETS = {target_of(name): name for name in COMMANDS}
# Words that targets of make take which are no command of syncbed.
OTHER_TARGETS = {
    "help": set(),
    "test": {"PYTEST_ARGS"},
    "soak": {"RUNS", "PROJECT"},
    "chaos": {"PROJECT"},
    "torch": {"WHEEL_INDEX"},
    "lint": set(),
    "lock": {"UPGRADE"},
    "docs": set(),
}
PROGRAMS = {"cd", "curl", "git", "gunzip", "prometheus", "promtool", "python3", "ssh", ".ci/run"}  # not ours
CHEAP_MODELS, MOST_STEPS, MOST_RUNS = {"logistic", "cnn3"}, 20, 2  # of what runs in tests/local
QUICK = {"runs", "show", "report", "compare", "export", "check", "data"}  # commands that train nothing
# The README is read here, and its blocks need no marks until it is rewritten.
UNMARKED = {ROOT / "README.md"}
ALL = [block for page in PAGES for block in blocks(page)]
OF_THE_SITE = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
HANDWRITTEN = [page for page in OF_THE_SITE if "Do not edit." not in page.read_text()]


@pytest.fixture(scope="module", autouse=True)
def own_strategy():
    """The guide's own example counts as a strategy: its registry line is taken from the page."""
    (line,) = [block.text for block in ALL if block.what == "trainer/registry.py"]
    (entry,) = eval("{" + line + "}", {"Strategy": Strategy}).items()
    SYNCS[entry[0]] = entry[1]
    yield
    del SYNCS[entry[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short_and_every_block_names_its_language(page):
    text = page.read_text()
    if page in OF_THE_SITE:
        assert text.count("\n") <= MOST_LINES
    fences = re.findall(r"^ *```.*$", text, re.MULTILINE)
    toctrees = fences.count("```{toctree}")
    assert len(fences) == 2 * (len(blocks(page)) + toctrees)
    assert {block.language for block in blocks(page)} <= LANGUAGES
    assert not re.search(r"<!-- (not run|run in|file):[^>]*-->\n+(?!```)", text), "a mark stands right before its block"


@pytest.mark.parametrize("page", HANDWRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page):
    lines = re.sub(r"\]\([^)]*\)", "]()", prose(page)).splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


@pytest.mark.parametrize("block", [b for b in ALL if b.mark], ids=str)
def test_a_mark_says_something_that_is_so(block):
    if block.mark == "run in":
        assert (ROOT / block.what).is_file()
    elif block.mark == "not run":
        assert len(block.what) > 8
    else:
        assert block.language == "python"


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("sh", "console")], ids=str)
def test_commands_are_ones_that_can_be_given(block):
    commands = list(block.commands())
    assert commands
    for command in commands:
        check(command)


def check(command: list[str]) -> None:
    """Fail for a command of ours that would be refused."""
    program, *words = command
    if program == "make":
        settings = cli.parse_settings([word for word in words if "=" in word])
        targets = [word for word in words if "=" not in word]
        assert targets
        for target in targets:
            check_target(target, settings)
    elif program == ".venv/bin/syncbed":
        args = cli.parser(words).parse_args(words)
        check_settings(args.command, cli.parse_settings(args.settings))
    elif program == ".venv/bin/python":
        named = ROOT / (words[1].replace(".", "/") if words[0] == "-m" else words[0])
        assert named.exists() or named.with_suffix(".py").exists(), f"no such file: {named}"
    else:
        assert program in PROGRAMS, f"{program}: not a program that the tests know"


def check_target(target: str, settings: dict[str, str]) -> None:
    assert target in make_targets(), f"make {target}: no such target"
    if target in OTHER_TARGETS:
        assert settings.keys() <= OTHER_TARGETS[target]
        for path in re.findall(r"tests[\w/.]*", settings.get("PYTEST_ARGS", "")):
            assert (ROOT / path).exists() or "sign_sgd" in path
    else:
        check_settings(TARGETS[target], {n: v for n, v in settings.items() if n not in cli.MAKEFILE_WORDS})


def check_settings(command: str, settings: dict[str, str]) -> None:
    """Raise UserError or SpecError for settings that the command would refuse."""
    if command in TAKES_A_RUN:
        settings = {name: value for name, value in settings.items() if name != "RUN"}
    refuse_unknown(settings, cli.settings_of(command))
    if command == "run":
        request = Request.of(settings)
        if request.resume is None:
            Conditions.of(request.conditions, request.new_spec(4), runtime_of(settings))
    elif command == "sweep":
        sweep_command.check_keep(settings)
        cells_of(settings)
    elif command == "reproduce":
        more = {n: v for n, v in settings.items() if n not in ("REPORT", "SCALE", "NAME", "KEEP", "DATA_DIR")}
        preset.read(settings["REPORT"], settings.get("SCALE", "quick")).cells(cluster(), more)
    elif command == "compare":
        compare_command.goal_of(settings)
    elif command == "up":
        ClusterSettings.from_settings(settings, host_cores=16, host_memory=64 << 30)


def runtime_of(settings: dict[str, str]):
    return RUNTIMES[settings.get("RUNTIME", "docker")]


def cluster(settings: dict[str, str] | None = None):
    """All of a runtime that combinations ask for."""
    runtime = runtime_of(settings or {})
    return SimpleNamespace(name=runtime.name, default_nodes=4, capabilities=runtime)


def cells_of(settings: dict[str, str]):
    """The combinations of a sweep."""
    return product(sweep_command.run_words(settings), int(settings.get("REPEATS", "1")), cluster(settings))[0]


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("sh", "console") and not b.mark], ids=str)
def test_a_block_without_a_mark_is_cheap_enough_to_be_run(block):
    if block.page in UNMARKED:
        return
    for program, *words in block.commands():
        hint = "mark the block with <!-- not run: why --> or <!-- run in: tests/... -->"
        assert program in ("make", ".venv/bin/syncbed"), hint
        command = TARGETS.get(words[0]) if program == "make" else words[0]
        settings = cli.parse_settings([word for word in words[1:] if "=" in word])
        if command in QUICK or (command == "run" and "RESUME" in settings):
            continue
        assert command in ("run", "sweep"), hint
        specs = [cell.spec() for cell in cells_of(settings) for _ in range(cell.repeats)] if command == "sweep" else []
        specs = specs or [Request.of(settings).new_spec(4)]
        assert len(specs) <= MOST_RUNS, hint
        for spec in specs:
            assert spec.model in CHEAP_MODELS and spec.data == "synthetic" and spec.nodes <= 2, hint
            assert (spec.steps or MOST_STEPS + 1) <= MOST_STEPS, hint


@pytest.mark.parametrize("block", [b for b in ALL if b.language == "python"], ids=str)
def test_python_can_be_compiled(block):
    try:
        compile(block.text, str(block), "exec")
    except SyntaxError:  # an entry of a table
        compile("{" + block.text + "}", str(block), "eval")


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("toml", "json")], ids=str)
def test_data_can_be_read(block, tmp_path):
    if block.language == "json":
        json.loads(block.text)
    elif "runs" in toml.loads(block.text):
        (tmp_path / "mine.toml").write_text(block.text)
        assert preset.read(str(tmp_path / "mine.toml"), "quick").cells(cluster(), {})[0]


@pytest.mark.parametrize(
    "command",
    [
        ["make", "rum"],
        ["make", "run", "SINC=ddp"],
        ["make", "run", "SYNC=dpp"],
        ["make", "run", "BATCH=255"],
        ["make", "run", "RATE=fast"],
        ["make", "run", "RUNTIME=local", "RATE=10mbit"],
        ["make", "sweep", "SYNC=single", "NODES=2"],
        ["make", "reproduce", "REPORT=r9"],
        ["make", "compare", "GOAL=80"],
        ["make", "cluster-up", "NODES=99"],
        ["make", "test", "PYTEST_ARGS=tests/none"],
        [".venv/bin/syncbed", "shown"],
        [".venv/bin/python", "benchmarks/none.py"],
        ["rm", "-rf", "runs"],
    ],
)
def test_a_command_that_would_be_refused_is_found(command):
    with pytest.raises((AssertionError, UserError, SpecError)):
        check(command)


# -- links ----------------------------------------------------------------------


LINKED = [*PAGES, ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Also where no site is built: files and anchors are as GitHub has them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:", "mailto:")):
            continue
        assert not path or (page.parent / path).exists(), target
        if anchor and (not path or path.endswith(".md")):
            assert anchor in anchors(page.parent / path if path else page), target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# -- what pages state of the code -------------------------------------------------------------------------------------


MESSAGES = re.findall(r"^\*\*`(.+)`\*\*$", (ROOT / "docs/guides/troubleshooting.md").read_text(), re.MULTILINE)


@cache
def texts() -> str:
    """Every text in the code, a line each, with … where it has a value; and the Makefile."""
    found = [(ROOT / "Makefile").read_text()]
    for folder in ("monitor", "trainer", "node", "serving"):
        for path in (ROOT / folder).rglob("*.py"):
            found += [text for node in ast.walk(ast.parse(path.read_text())) if (text := text_of(node))]
    return "\n".join(found)


def text_of(node: ast.AST) -> str | None:
    """A text with … for each value in it: f"{a} b" and "{a} b" for str.format alike."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{[^{}]*\}", "…", node.value)
    return None


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_that_the_code_prints(message):
    after_setting = message.partition("=…: ")[2]  # a SpecError puts NAME=value before its text
    assert message in texts() or (after_setting and after_setting in texts())


def test_messages_are_found_on_the_page():
    assert len(MESSAGES) > 30
    assert "no Docker engine answers at …" in texts() and "no such message … at all" not in texts()


def test_every_field_of_a_result_is_described():
    text = (ROOT / "docs/reference/result.md").read_text()
    names = [field.serialization_alias or name for name, field in Result.model_fields.items()]
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []
