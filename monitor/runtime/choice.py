"""Which runtime a command uses: the cluster where one is up, else processes of this machine."""

from monitor.errors import UserError

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
