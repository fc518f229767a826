"""The server of models in the cluster: the service `serve` of compose.yaml, its models in a volume of their own."""

from pathlib import Path

from docker import DockerClient
from docker.errors import NotFound
from docker.models.containers import Container

from monitor.engine import compose, containers, naming, sdk
from monitor.engine.images import code_hash
from monitor.engine.serving_ports import SERVICE, VARIABLES, ports_of
from monitor.errors import UserError
from monitor.runtime import volumes
from monitor.serve import export

VOLUME = "models"
_STOP_SECONDS = 12  # as compose.yaml has it: the server ends within serving.server.DRAIN_SECONDS


class ClusterHost:
    """A cluster that is up, as a place for a server."""

    name = "docker"

    def __init__(self, client: DockerClient, project: str):
        self._client, self._project = client, project
        self.words = naming.words(project)
        with sdk.guard():
            self._present = containers.containers(client, project)
            node = next(c for c in self._present if c.labels[naming.ROLE_LABEL] == "node")
            self._image = node.image
        self._tag = node.attrs["Config"]["Image"]

    def port(self) -> int | None:
        """Where the server that is there answers."""
        return _port([c for c in self._present if c.status == "running"])

    def kept_port(self) -> int | None:
        """Where a server that was stopped answered: whoever asks it expects it there again."""
        return _port(self._present)

    def start(self, port: int) -> None:
        """Start the server and wait until it is healthy. Raises UserError and RunFailed."""
        self._refuse_other_code()
        ports = {name: str(port + offset) for offset, name in enumerate(VARIABLES)}
        with sdk.guard():
            for taken in ports.values():
                containers.check_host_port(self._client, self._project, "PORT", int(taken))
        variables = {"TRAINER_IMAGE": self._tag} | ports
        wait = ("--wait", "--wait-timeout", "90")
        compose.compose(self._project, variables, "up", "--detach", "--no-build", "--no-deps", *wait, SERVICE)

    def put(self, folder: Path, name: str) -> None:
        """Copy an artefact into the store."""
        image = self._refuse_other_code()
        members = {name: None} | {f"{name}/{path.name}": path for path in export.artefact_files(folder)}
        volumes.carry(self._client, image, self._project, VOLUME, members)

    def stop(self) -> list[str]:
        """Let it answer what is in flight, then remove it and its models. Returns what was removed."""
        with sdk.guard():
            server = [c for c in self._present if c.labels[naming.ROLE_LABEL] == SERVICE]
            for container in server:
                container.stop(timeout=_STOP_SECONDS)
            removed = containers.remove_containers(server)
            try:
                self._client.volumes.get(f"{self._project}_{VOLUME}").remove()
            except NotFound:
                return removed
        return [*removed, f"volume {self._project}_{VOLUME}"]

    def _refuse_other_code(self) -> str:
        """The id of the nodes' image. Raises UserError unless it has this checkout's code: what runs may be stopped,
        but nothing older is started.
        """
        image = self._image
        if image is None or image.labels.get(naming.CODE_LABEL) != code_hash():
            raise UserError(f"the cluster runs an older image; `make cluster-up{self.words}` rebuilds it in seconds")
        return str(image.id)


def _port(present: list[Container]) -> int | None:
    return int(ports_of(present).get("SERVE_PORT", 0)) or None


def find(project: str, required: bool) -> ClusterHost | None:
    """The cluster of this name, if it is up. Raises UserError when it is required and is not."""
    from monitor.runtime.docker import DockerRuntime

    if DockerRuntime.find(project, required) is None:
        return None
    return ClusterHost(sdk.connect(), project)
