"""The `syncbed` command. `make` targets are thin: `make run SYNC=ddp` is `syncbed run SYNC=ddp`."""

import sys

try:
    import argparse
    import os
    import re
    import traceback
    from collections.abc import Collection
    from typing import NoReturn

    from monitor.commands import COMMANDS, TAKES_A_RUN
    from monitor.errors import BAD_INPUT, FAILED, UserError
    from trainer.registry import load
    from trainer.spec import SpecError
except KeyboardInterrupt:
    sys.exit("syncbed: interrupted")


MAKEFILE_WORDS = {"PYTHON", "PYTEST_ARGS"}  # for the Makefile itself


def main(argv: list[str] | None = None) -> int:
    """Run one command. Every foreseen error is one line on stderr; a traceback shows only with DEBUG=1."""
    try:
        code = _command(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `syncbed runs --json | head`: nobody reads on, which is no error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit
        return 0
    except (UserError, SpecError) as error:
        _complain(str(error))
        return getattr(error, "exit_code", BAD_INPUT)
    except KeyboardInterrupt:
        print("syncbed: interrupted", file=sys.stderr)
        return FAILED
    except Exception as error:  # a mistake of ours: one line all the same, and how to see more
        if os.environ.get("DEBUG") == "1":
            traceback.print_exc()
        else:
            message = str(error) or "no message"
            _complain(f"{type(error).__name__}: {message} (DEBUG=1 shows where)")
        return FAILED


def _command(words: list[str]) -> int:
    """Run the command that the words name. Returns its exit code; raises what it raises."""
    args = parser(words).parse_args(words)
    if "DEBUG=1" in args.settings:
        os.environ["DEBUG"] = "1"
    if args.command in TAKES_A_RUN and args.run and "=" in args.run:
        args.settings.insert(0, args.run)  # `show RUNS_DIR=x`: no id was given
        args.run = None
    settings = parse_settings(args.settings)
    if args.from_make:
        settings |= make_settings(dict(os.environ))
        warn_of_ignored(args.command, settings, dict(os.environ))
    of_the_command_line = {"DEBUG"}  # the others are the command's own
    if args.command in TAKES_A_RUN:
        args.run = args.run or settings.get("RUN") or "latest"
        of_the_command_line.add("RUN")
    settings = {name: value for name, value in settings.items() if name not in of_the_command_line}
    return load(COMMANDS[args.command].handler)(settings, args) or 0


def _complain(message: str) -> None:
    """The line that says what went wrong, which may name things from outside."""
    from monitor.console import say  # which takes its time

    say(f"syncbed: {message}")


def run() -> None:
    """The console script."""
    sys.exit(main())


class Parser(argparse.ArgumentParser):
    """With errors of one line, as all others are."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what would do")


def parse_settings(words: list[str]) -> dict[str, str]:
    """NAME=value words as a dictionary. Raises UserError for a word of another form."""
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UserError(f"{word}: not a setting; settings are NAME=value, as in SYNC=ddp")
        settings[name] = value
    return settings


def make_settings(environment: dict[str, str]) -> dict[str, str]:
    """What was set on make's command line: make names it in MAKEFLAGS and exports the values (GNU make manual, 5.7.2).

    Read from the environment, not passed through the shell, so that no value needs quoting. A setting that comes from
    the user's own environment is not on make's command line and does not count.
    """
    flags = re.findall(r"(?:\\.|[^\\ ])+", environment.get("MAKEFLAGS", ""), re.DOTALL)  # blanks in values are escaped
    names = [m[1] for flag in flags if (m := re.match(r"([A-Za-z_][A-Za-z0-9_]*):?=", flag))]
    return {name: environment[name] for name in names if name in environment and name not in MAKEFILE_WORDS}


def warn_of_ignored(command: str, settings: dict[str, str], environment: dict[str, str]) -> None:
    """Say that `SYNC=single make run` does not set SYNC: the environment is no place for settings."""
    for name in sorted(settings_of(command).keys() & environment.keys() - settings.keys()):
        word = f"{name}={environment[name]}"
        print(
            f"warning: {word} in the environment is ignored; it counts behind the word make: make ... {word}",
            file=sys.stderr,
        )


def settings_of(command: str) -> dict[str, str]:
    """The settings that a command takes, with what each is for."""
    return load(COMMANDS[command].settings)


def settings_help(command: str) -> str:
    """The settings that a command takes, a line each."""
    rows = [f"  {name:16}{meaning}" for name, meaning in settings_of(command).items()]
    return "\n".join(["settings:", *rows]) if rows else ""


def parser(words: Collection[str]) -> argparse.ArgumentParser:
    """The command line: a command, then NAME=value settings in the words of `make`.

    `words`: what was typed. Only the command among them has its settings in its help: they take time to import.
    """
    examples = "\n".join(f"  {command.example:45}{command.help}" for command in COMMANDS.values())
    top = Parser(
        prog="syncbed",
        description="A containerised multi-node testbed for data-parallel training.",
        epilog="examples:\n" + examples + "\n\n`syncbed run --help` lists every setting of a run.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=f"example: {command.example}\n" + (settings_help(name) if name in words else ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in TAKES_A_RUN:
            sub.add_argument("run", nargs="?", help="a run's id, or latest, which is the default; RUN=id is the same")
        sub.add_argument("settings", nargs="*", metavar="NAME=value", help="settings, as make takes them")
        sub.add_argument("--json", action="store_true", help="print one JSON document, for programs")
        sub.add_argument("--from-make", action="store_true", help=argparse.SUPPRESS)
    return top


if __name__ == "__main__":
    run()
