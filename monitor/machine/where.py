"""`syncbed where`: the runtime that a command which trains or serves would use."""

from monitor.errors import refuse_unknown
from monitor.runtime.choice import choose
from trainer.spec import RunSpec


def where(settings: dict[str, str], args) -> int:
    """CLI: print the name of the runtime that a command which trains or serves would use, with these settings."""
    from monitor.experiments import reproduce, sweep_command
    from monitor.run.request import NOT_IN_SPEC
    from monitor.serve import command

    refuse_unknown(
        settings, RunSpec.settings_help() | NOT_IN_SPEC | sweep_command.SETTINGS | reproduce.SETTINGS | command.SETTINGS
    )
    print(choose(settings).name)
    return 0
