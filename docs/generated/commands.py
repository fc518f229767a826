"""The targets of make and the commands of syncbed, with their settings."""

import re
from pathlib import Path

from docs.generated.markdown import page, settings_table, table
from monitor import cli
from monitor.commands import COMMANDS
from monitor.run import request

ROOT = Path(__file__).resolve().parents[2]
OF_THE_CLUSTER = ("up", "down", "status", "logs", "images", "doctor", "clean")
MAKE_TARGETS = {"up": "cluster-up", "down": "cluster-down", "status": "cluster-status"}  # others are named alike


def commands() -> str:
    """Every target of make, and the commands about runs."""
    targets = make_targets()
    listed = {target: f"syncbed {command}" for command in COMMANDS if (target := target_of(command)) in targets}
    return page(
        "Commands",
        "Each command is a target of `make` and a command of `.venv/bin/syncbed`. `make help` lists the targets, "
        "`.venv/bin/syncbed COMMAND --help` prints a command's settings. With `--json`, `.venv/bin/syncbed` prints one "
        "JSON document on standard output. `DEBUG=1` shows tracebacks.",
        "Exit codes of `syncbed`: 0 done, 1 the run failed, 2 bad input. make returns 2 for both.",
        table(
            ["`make`", "what it does", "the same as"],
            ([f"`{t}`", text, f"`{listed[t]}`" if t in listed else ""] for t, text in targets.items()),
        ),
        *(part for name in COMMANDS if name not in OF_THE_CLUSTER for part in command_parts(name)),
        "[Commands of the cluster](cluster-commands.md) has the others.",
    )


def cluster_commands() -> str:
    """The commands about the cluster and this machine."""
    return page(
        "Commands of the cluster",
        "[Commands](commands.md) lists all commands.",
        *(part for name in OF_THE_CLUSTER for part in command_parts(name)),
    )


def command_parts(name: str) -> list[str]:
    """A command's heading, what it does, and its settings."""
    command, settings = COMMANDS[name], dict(cli.settings_of(name))
    parts = [f"## {name}", f"{command.help[0].upper()}{command.help[1:]}, as `{command.example}`."]
    note = ""
    if name in ("run", "where"):
        settings, note = {}, "It takes the [settings of a run](settings.md)."
    elif name in ("sweep", "reproduce"):
        settings = {n: text for n, text in settings.items() if request.SETTINGS.get(n) != text}
        note = "And the [settings of a run](settings.md), except `RESUME`, `RUNS_DIR` and `PAGES`."
    elif name != "up" and (up := cli.settings_of("up")).items() <= settings.items():
        settings = {n: text for n, text in settings.items() if n not in up}
        note = "And the settings of [up](#up)." if settings else "It takes the settings of [up](#up)."
    return parts + [settings_table(settings)] * bool(settings) + [note] * bool(note)


def target_of(command: str) -> str:
    return MAKE_TARGETS.get(command, command)


def make_targets() -> dict[str, str]:
    """What `make help` lists."""
    lines = re.findall(r"^([a-z-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return dict(lines)
