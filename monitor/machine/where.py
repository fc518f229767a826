"""`syncbed where`: the runtime that a command which trains or serves would use."""

from monitor.errors import refuse_unknown
from monitor.runtime.choice import Place, choose


def where(settings: dict[str, str], args) -> int:
    """CLI: print the name of the runtime that a command which trains or serves would use, with these settings."""
    from monitor.experiments import reproduce, sweep_command
    from monitor.run import request
    from monitor.serve import command

    refuse_unknown(settings, request.SETTINGS | sweep_command.SETTINGS | reproduce.SETTINGS | command.SETTINGS)
    print(choose(Place.of(settings)).name)
    return 0
