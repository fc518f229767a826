"""Which runtime a command uses: the cluster where one is up, else processes of this machine."""

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.capabilities import RUNTIMES
from monitor.engine.naming import DEFAULT_PROJECT
from monitor.errors import UserError
from monitor.runtime.base import Runtime


@dataclass(frozen=True)
class Place:
    """Where a run is to take place. `runtime` None: the cluster where one is up, else this machine.
    `project` None: the cluster of the default name.
    """

    runtime: str | None = None
    project: str | None = None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "Place":
        """From RUNTIME= and PROJECT=. Raises UserError when there is no runtime of that name."""
        runtime = settings.get("RUNTIME")
        if runtime not in (None, *RUNTIMES):
            raise UserError(f"RUNTIME={runtime}: one of: {', '.join(RUNTIMES)}")
        return cls(runtime, settings.get("PROJECT"))


def choose(place: Place) -> Runtime:
    """The runtime of this place.

    Raises UserError when RUNTIME=docker, or PROJECT= names a cluster, and the cluster is not up.
    """
    if place.runtime != "local":
        from monitor.runtime.docker import DockerRuntime

        required = place.runtime == "docker" or place.project is not None
        project = DEFAULT_PROJECT if place.project is None else place.project
        if cluster := DockerRuntime.find(project, required=required):
            return cluster
    from monitor.runtime.local import LocalRuntime

    return LocalRuntime(chosen=place.runtime == "local")
