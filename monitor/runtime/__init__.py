"""How nodes are reached. Nothing outside this folder knows whether a node is a container or a process here."""

from monitor.errors import UserError, refuse_unknown
from trainer.spec import RunSpec

RUNTIMES = ("docker", "local")


def choose(settings: dict[str, str]):
    """The runtime that RUNTIME= names; without it, docker where a cluster is up and local otherwise.

    Takes RUNTIME and PROJECT out of `settings`. Raises UserError when RUNTIME names neither, and when it names docker,
    or PROJECT= a cluster, and that is not up.
    """
    wanted = settings.pop("RUNTIME", None)
    required = wanted == "docker" or "PROJECT" in settings
    project = settings.pop("PROJECT", "syncbed")
    if wanted not in (None, *RUNTIMES):
        raise UserError(f"RUNTIME={wanted}: one of: {', '.join(RUNTIMES)}")
    if wanted != "local":
        from monitor.runtime.docker import DockerRuntime

        cluster = DockerRuntime.find(project, required=required)
        if cluster:
            return cluster
    from monitor.runtime.local import LocalRuntime

    return LocalRuntime(chosen=wanted == "local")


def where(settings: dict[str, str], args) -> int:
    """CLI: print the name of the runtime that a command which trains or serves would use, with these settings."""
    from monitor import reproduce, serve, sweep
    from monitor.run import NOT_IN_SPEC

    refuse_unknown(
        settings, RunSpec.settings_help() | NOT_IN_SPEC | sweep.SETTINGS | reproduce.SETTINGS | serve.SETTINGS
    )
    print(choose(settings).name)
    return 0
