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

    @property
    def may_be_cluster(self) -> bool:
        return self.runtime is None or RUNTIMES[self.runtime].is_cluster

    @property
    def must_be_cluster(self) -> bool:
        """Whether a cluster is named, so that this machine is no substitute."""
        return self.may_be_cluster and (self.runtime is not None or self.project is not None)

    @property
    def cluster(self) -> str:
        """The name of the cluster that it is or may be."""
        return DEFAULT_PROJECT if self.project is None else self.project


def choose(place: Place) -> Runtime:
    """The runtime of this place.

    Raises UserError when RUNTIME=docker, or PROJECT= names a cluster, and the cluster is not up.
    """
    if place.may_be_cluster:
        from monitor.runtime.docker import DockerRuntime

        if cluster := DockerRuntime.find(place.cluster, required=place.must_be_cluster):
            return cluster
    from monitor.runtime.local import LocalRuntime

    return LocalRuntime(is_named=not place.may_be_cluster)
