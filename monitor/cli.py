"""The `syncbed` command. `make` targets are thin: `make run SYNC=ddp` is `syncbed run SYNC=ddp`."""

import argparse
import os
import re
import sys
import traceback
from importlib import import_module

from monitor.errors import BAD_INPUT, UserError
from trainer.spec import SpecError

COMMANDS = {  # name: (place of the handler, what it does, example). A handler takes (settings, args), returns an exit code.
    "up": ("monitor.cluster:up", "build what is missing and start the cluster", "syncbed up NODES=4 CPUS=0.5"),
    "down": ("monitor.cluster:down", "stop the cluster and leave nothing", "syncbed down"),
    "status": ("monitor.cluster:status", "the nodes, their limits and the run on them", "syncbed status --json"),
    "logs": ("monitor.cluster:logs", "what the cluster's services printed", "syncbed logs"),
    "images": ("monitor.images:build", "build or pull the cluster's images", "syncbed images CA_BUNDLE=company.pem"),
    "run": ("monitor.run:command", "train once", "syncbed run SYNC=ddp MODEL=vgg11 STEPS=40"),
    "where": ("monitor.runtime:where", "say which runtime a run would use", "syncbed where"),
    "data": ("monitor.data:command", "fetch, check and prepare a data set", "syncbed data DATA=cifar10"),
    "runs": ("monitor.results:list_command", "list the runs", "syncbed runs --json"),
    "show": ("monitor.results:show_command", "one run's summary", "syncbed show latest"),
    "doctor": ("monitor.doctor:command", "check this machine, say what would fix it", "syncbed doctor"),
    "clean": ("monitor.cluster:clean", "remove what crashed runs left behind", "syncbed clean"),
}
TAKES_A_RUN = {"show"}


def main(argv: list[str] | None = None) -> int:
    """Run one command. Every foreseen error is one line on stderr; a traceback shows only with DEBUG=1."""
    args = parser().parse_args(argv)
    try:
        settings = parse_settings(args.settings) | (make_settings() if args.from_make else {})
        module, handler = COMMANDS[args.command][0].split(":")
        debug = settings.pop("DEBUG", os.environ.get("DEBUG", "0")) == "1"
        return getattr(import_module(module), handler)(settings, args) or 0
    except (UserError, SpecError) as error:
        print(f"syncbed: {error}", file=sys.stderr)
        return getattr(error, "exit_code", BAD_INPUT)
    except KeyboardInterrupt:
        print("syncbed: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("DEBUG") == "1" or locals().get("debug"):
            traceback.print_exc()
        else:
            print(f"syncbed: {type(error).__name__}: {str(error) or 'no message'} (DEBUG=1 shows where)", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line: a command, then NAME=value settings in the words of `make`."""
    examples = "\n".join(f"  {example:45}{what}" for _, what, example in COMMANDS.values())
    top = argparse.ArgumentParser(
        prog="syncbed",
        description="A containerised multi-node testbed for data-parallel training.",
        epilog="examples:\n" + examples + "\n\n`syncbed run --help` lists every setting of a run.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="command")
    for name, (_, what, example) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=what,
            description=what[0].upper() + what[1:] + ".",
            epilog=f"example: {example}\n" + settings_help(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name in TAKES_A_RUN:
            sub.add_argument("run", nargs="?", default="latest", help="a run's id, or latest")
        sub.add_argument("settings", nargs="*", metavar="NAME=value", help="settings, as make takes them")
        sub.add_argument("--json", action="store_true", help="print one JSON document, for programs")
        sub.add_argument("--from-make", action="store_true", help=argparse.SUPPRESS)
    return top
