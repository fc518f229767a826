"""RUNTIME=docker: every node is a container of the cluster that `make cluster-up` started.

A rank is a `docker exec` of the node's launcher. Its stdin stays attached: when this process dies, Docker closes it,
and the launcher ends the rank (node/launcher.py). Data goes in and checkpoints come out through volumes and Docker's
archive calls: no folder of the host is mounted, so a remote or rootless engine works as well.
"""

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue

from docker import DockerClient
from docker.models.containers import Container

from monitor.capabilities import RUNTIMES
from monitor.clock import CLOCK
from monitor.conditions.conditions import Conditions
from monitor.conditions.faults import Fault
from monitor.conditions.links import Link
from monitor.dashboards import render
from monitor.engine import container_limits, containers, inspection, naming, sdk
from monitor.engine.inspection import NodeFacts
from monitor.errors import Busy, NoEngine, RunFailed, UserError
from monitor.metrics import prometheus
from monitor.metrics.sampling import Row
from monitor.runtime import preflight, volumes, wires
from monitor.runtime.base import Job, Output, RankHandle, Runtime
from monitor.runtime.docker_rank import PYTHON, DockerRank, Execution
from monitor.runtime.node_faults import NodeFaults
from monitor.runtime.streams import RankOutput, budget_of
from node.disk import Bound, removal
from node.leftovers import launcher_command
from node.limits import Limits
from node.signature import new_key
from trainer.checkpoint_folder import COMPLETE
from trainer.layout import Seat, on_node, seats
from trainer.spec import RunSpec

NODE, RUNS = "trainer-", "/runs"
HIDDEN_PYTHON = "hidden-python"  # of the node's image: the node's user cannot look into it
SCRATCH = {"/run/syncbed": "lock", "/tmp": ".healthy", "/dev/shm": ""}  # of a node; see node.disk.Bound
POLL_SECONDS = 0.5  # between two looks at nodes that are to come back


class DockerRuntime(Runtime):
    """A cluster. `containers`: by node name, in rank order."""

    name = "docker"
    capabilities = RUNTIMES[name]

    def __init__(self, client: DockerClient, project: str, containers: Mapping[str, Container]):
        self._client, self._project = client, project
        self._containers = containers
        self._port = 0
        self._data_present: set[str] = set()
        self._data = self._resume = ""
        self._holding = False  # whether the nodes are this run's
        self.default_nodes = len(containers)

    @classmethod
    def find(cls, project: str, required: bool) -> "DockerRuntime | None":
        """The running cluster of this project. None when there is none and it is not required; else UserError.

        An engine that is there but cannot be used may hold a cluster: stderr then says why it is not looked for.
        """
        project = naming.project({"PROJECT": project})
        try:
            client = sdk.connect()
        except UserError as error:
            if required:
                raise
            if not isinstance(error, NoEngine):
                print(f"warning: no cluster was looked for: {error}", file=sys.stderr)
            return None
        with sdk.guard():
            services = client.containers.list(all=True, filters={"label": f"{naming.PROJECT_LABEL}={project}"})
        nodes = {
            service: container
            for container in services
            if (service := container.labels.get(containers.SERVICE_LABEL, "")).startswith(NODE)
        }
        if not any(container.status == "running" for container in nodes.values()):
            if required:
                raise UserError(f"no cluster {project} is up; `make cluster-up{naming.words(project)}` starts it")
            return None
        return cls(client, project, dict(sorted(nodes.items(), key=lambda node: int(node[0].removeprefix(NODE)))))

    def node_name(self, node: int) -> str:
        return f"{NODE}{node}"

    def note(self, spec: RunSpec) -> str:
        return (
            f"training on {spec.nodes} of the {len(self._containers)} nodes of cluster {self._project} (RUNTIME=docker)"
        )

    def watch(self, run_id: str) -> str | None:
        with suppress(UserError):
            urls = self._urls()
            if "grafana" in urls:
                return render.training_url(urls["grafana"], run_id, time.time())
            return urls.get("prometheus")
        return None

    def prometheus(self) -> str | None:
        with suppress(UserError):
            return self._urls().get("prometheus")
        return None

    def preflight(self, spec: RunSpec, conditions: Conditions) -> None:
        preflight.check_count(spec.nodes, len(self._containers), self._project)
        names = [self.node_name(node) for node in range(spec.nodes)]
        preflight.check_running(self._containers, names, self._project)
        nodes = self._nodes(spec)
        facts = inspection.facts_of_nodes(nodes)
        for name, container, fact in zip(names, nodes, facts, strict=True):
            preflight.check_node(name, container, fact, names, self._project)
        self._set_conditions(nodes, facts, conditions)
        ranks = seats(spec)
        self._disk = [conditions.disk_bytes(node, on_node(ranks, node)) for node in range(spec.nodes)]
        self._port = facts[0]["free_port"]
        self._data_present = set.intersection(*(set(fact["data"]) for fact in facts))

    def _set_conditions(self, nodes: list[Container], facts: list[NodeFacts], conditions: Conditions) -> None:
        """Work out what each node is to be held to. Raises UserError for what these nodes cannot have."""
        with sdk.guard():
            host = self._client.info()
        self.limits = [
            conditions.limits(node, container_limits.original(container), host["NCPU"], host["MemTotal"])
            for node, container in enumerate(nodes)
        ]
        self._links, self.links = conditions.links, [link.facts() for link in conditions.links]
        if self._links:
            kinds = wires.kinds(self._client, self._image(), self._project, self._links)
            wires.refuse_unknown_kinds(self._links, kinds)
        # By a run that was killed; what it left goes when this one holds its nodes.
        self._shaped = {str(container.name) for container, fact in zip(nodes, facts, strict=True) if fact["shaped"]}
        self.faults = conditions.faults
        self._faults = NodeFaults(self._client, self._project, nodes, self.limits, self._links, self._shaped)
        self._faults.refuse(self.faults)

    def _nodes(self, spec: RunSpec) -> list[Container]:
        return [self._containers[self.node_name(node)] for node in range(spec.nodes)]

    def _image(self) -> str:
        """The image of the nodes."""
        return wires.image_of(self._containers[self.node_name(0)])

    def _carry(self, volume: str, members: dict[str, Path | None]) -> None:
        volumes.carry(self._client, self._image(), self._project, volume, members)

    def push_data(self, folder: Path) -> None:
        self._data = f"/data/{folder.name}"
        if folder.name in self._data_present:
            return
        # The manifest goes last: a folder without it is incomplete, and nobody reads it.
        files = sorted(folder.iterdir(), key=lambda path: path.name == "manifest.json")
        self._carry("data", {f"{folder.name}/{path.name}": path for path in files})

    def push_checkpoint(self, job: Job, folder: Path | None) -> None:
        within = f"{job.run_id}/resume"
        self._resume = f"{RUNS}/{within}" if folder else ""
        if folder:
            files = sorted(folder.iterdir(), key=lambda path: path.name == COMPLETE)
            members: dict[str, Path | None] = dict.fromkeys((job.run_id, within))
            members |= {f"{within}/{path.name}": path for path in files}
            self._carry("runs", members)

    def start(self, job: Job, seat: Seat, output: Queue[Output]) -> RankHandle:
        key = new_key()
        request = job.request(
            seat,
            key,
            PYTHON,
            self.limits[seat.node],
            bool(self._links) and self._links[seat.node].shapes,
            Bound(folder=RUNS, most_bytes=self._disk[seat.node], scratch=SCRATCH),
            MASTER_ADDR=self.node_name(0),
            MASTER_PORT=str(self._port),
            SYNCBED_DATA=self._data,
            SYNCBED_OUT=f"{RUNS}/{job.run_id}",
            SYNCBED_RESUME=self._resume,
        )
        command = launcher_command(HIDDEN_PYTHON, job.run_id)
        container = self._containers[self.node_name(seat.node)]
        with sdk.guard():
            api = self._client.api
            exec_id = api.exec_create(container.id, command, stdin=True)["Id"]
            stream = api.exec_start(exec_id, socket=True)
        lines = RankOutput(seat.rank, output, key, budget_of(job.spec))
        return DockerRank(stream, request, lines, Execution(container, exec_id, job.run_id))

    def apply_conditions(self, job: Job, warn: Callable[[str], None]) -> None:
        self._holding = True
        nodes = self._nodes(job.spec)
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self._apply, nodes, self.limits, self._links or [None] * len(nodes)))
        if self._links and len(nodes) > 1:
            measured = wires.verified(self._client, nodes, self._links, warn)
            self.links = [
                link.facts() | {"measured": figures} for link, figures in zip(self._links, measured, strict=True)
            ]

    def _apply(self, container: Container, limits: Limits, link: Link | None) -> None:
        with sdk.guard():
            container.reload()  # another run may have taken place since it was looked at
            container_limits.put(container, limits)
        if link or container.name in self._shaped:
            self._shaped.add(str(container.name))
            wires.shape(self._client, container, self._project, link)

    def strike(self, fault: Fault) -> None:
        self._faults.strike(fault)

    def relieve(self, fault: Fault) -> None:
        self._faults.relieve(fault)

    def _bring(self, job: Job, path: str) -> None:
        source, most = f"{RUNS}/{job.run_id}/{path}", sum(self._disk)
        volumes.bring(self._containers[self.node_name(0)], source, job.run_folder / path, most)

    def rows(self, job: Job, start: float, end: float, warn: Callable[[str], None]) -> list[Row]:
        url = self._urls().get("prometheus")
        if url is None:
            warn("this cluster has no Prometheus running; metrics.csv is empty")
            return []
        names = {self.node_name(node) for node in range(job.spec.nodes)}
        rows = prometheus.window(url, *CLOCK.shown(start, end), nodes=names, warn=warn)
        return [replace(row, time=round(CLOCK.of_shown(row.time), 3)) for row in rows if row.node in names]

    def _urls(self) -> dict[str, str]:
        with sdk.guard():
            return containers.urls(self._client, self._project)

    def prepare_restart(self, job: Job, seconds: float, stop: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while not stop():
            facts, problem = self._facts_when_ready(job)
            if facts:
                self._faults.mend([fact["shaped"] for fact in facts])
                self._port = facts[0]["free_port"]
                return
            if time.monotonic() > until:
                raise UserError(f"the nodes were not back within {seconds:g} s: {problem}")
            time.sleep(POLL_SECONDS)

    def _facts_when_ready(self, job: Job) -> tuple[list[NodeFacts], str]:
        """The nodes' facts when all can take part again, else none and why not. Raises Busy when a run has them."""
        nodes = self._nodes(job.spec)
        names = [self.node_name(node) for node in range(job.spec.nodes)]
        try:
            with sdk.guard():
                for node in nodes:
                    node.reload()
            facts = inspection.facts_of_nodes(nodes)
        except (UserError, RunFailed) as error:
            return [], str(error)
        if holder := next((fact["run"] for fact in facts if fact["run"] not in (None, job.run_id)), None):
            raise Busy(holder)
        for name, fact in zip(names, facts, strict=True):
            if problem := preflight.why_not_ready(name, fact, names):
                return [], problem
        return facts, ""

    def release(self, job: Job) -> None:
        with sdk.guard():
            nodes = self._nodes(job.spec)
        if self._holding:  # else they are another's, with what that one brought about
            shaped = {container: container.name in self._shaped for container in nodes}
            wires.take_back(self._client, shaped, self._project, nodes[0], job.run_id)
        with sdk.guard():
            nodes[0].exec_run(removal(f"{RUNS}/{job.run_id}"))
