"""RUNTIME=docker: every node is a container of the cluster that `make cluster-up` started.

A rank is a `docker exec` of the node's launcher. Its stdin stays attached: when this process dies, Docker closes it,
and the launcher ends the rank (node/launcher.py). Data goes in and checkpoints come out through volumes and Docker's
archive calls: no folder of the host is mounted, so a remote or rootless engine works as well.
"""

import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Queue

from monitor.clock import CLOCK
from monitor.conditions.conditions import Conditions
from monitor.conditions.faults import Fault
from monitor.conditions.links import Link
from monitor.dashboards import render
from monitor.engine import archives, container_limits, containers, inspection, naming, sdk
from monitor.engine.images import code_hash
from monitor.errors import Busy, NoEngine, RunFailed, UserError
from monitor.metrics import prometheus
from monitor.metrics.sampling import Row
from monitor.runtime import volumes, wires
from monitor.runtime.base import Job, RankHandle, Runtime
from monitor.runtime.docker_rank import PYTHON, DockerRank, Execution
from monitor.runtime.node_faults import NodeFaults
from node import limits
from node.leftovers import LAUNCHER
from trainer.checkpoint_folder import COMPLETE
from trainer.layout import Seat
from trainer.spec import RunSpec

NODE = "trainer-"
LEAST_SHM_BYTES = 64 << 20


class DockerRuntime(Runtime):
    name = "docker"

    def __init__(self, client, project: str, containers: dict[str, object]):
        self._api = client.api
        self._client = client
        self._project, self._words = project, naming.words(project)
        self._containers = containers  # by node name, in rank order
        self._port = 0
        self._data_present: set[str] = set()
        self._data = self._resume = ""
        self._held = False  # whether the nodes were this run's
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
            found = client.containers.list(all=True, filters={"label": f"{naming.PROJECT_LABEL}={project}"})
        nodes = [
            container for container in found if container.labels.get("com.docker.compose.service", "").startswith(NODE)
        ]
        nodes.sort(key=lambda container: int(container.labels["com.docker.compose.service"].removeprefix(NODE)))
        containers = {container.labels["com.docker.compose.service"]: container for container in nodes}
        if not any(container.status == "running" for container in containers.values()):
            if required:
                raise UserError(f"no cluster {project} is up; `make cluster-up{naming.words(project)}` starts it")
            return None
        return cls(client, project, containers)

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

    def preflight(self, spec: RunSpec, conditions: Conditions) -> None:
        if spec.nodes > len(self._containers):
            raise UserError(
                f"NODES={spec.nodes}: the cluster has {len(self._containers)}; "
                f"`make cluster-up NODES={spec.nodes}{self._words}` makes it larger"
            )
        names = [self.node_name(node) for node in range(spec.nodes)]
        for name in names:
            container = self._containers.get(name)
            if container is None or container.status != "running":
                state = container.status if container else "missing"
                mends = f"`make cluster-up{self._words}` mends it, `make logs{self._words}` shows why"
                raise UserError(f"node {name} is {state}; {mends}")
        with ThreadPoolExecutor(len(names)) as pool:
            facts = list(pool.map(lambda name: inspection.node_facts(self._containers[name]), names))
        for name, fact in zip(names, facts, strict=True):
            self._judge(name, fact, names)
        with sdk.guard():
            info = self._client.info()
        host = info["NCPU"], info["MemTotal"]
        self.limits = [
            conditions.limits(node, container_limits.own(self._containers[name]), *host)
            for node, name in enumerate(names)
        ]
        self._links, self.links = conditions.links, [link.facts() for link in conditions.links]
        if self._links:
            image = self._containers[names[0]].image.id
            there = wires.kinds(self._client, image, self._project, self._links)
            wires.refuse_unknown_kinds(self._links, there)
        # By a run that was killed; what it left goes when this one holds its nodes.
        self._shaped = {self._containers[n].name for n, fact in zip(names, facts, strict=True) if fact["shaped"]}
        self.faults = conditions.faults
        nodes = [self._containers[name] for name in names]
        self._faults = NodeFaults(self._client, self._project, nodes, self.limits, self._links, self._shaped)
        self._faults.refuse(self.faults)
        self._port = facts[0]["free_port"]
        self._data_present = set.intersection(*(set(fact["data"]) for fact in facts))

    def _judge(self, name: str, fact: dict, names: list[str]) -> None:
        """Raise UserError with the one thing that keeps this node from taking part."""
        again = f"`make cluster-down cluster-up{self._words}` starts the cluster afresh"
        if fact["run"]:
            raise Busy(fact["run"])
        if fact["code"] != code_hash():
            raise UserError(
                f"the cluster runs an older image (code {fact['code'][:12] or 'unknown'}, this folder has "
                f"{code_hash()[:12]}); `make cluster-up{self._words}` rebuilds it in seconds"
            )
        if any(address.startswith("127.") for address in fact["addresses"]):
            raise UserError(f"node {name}: its own name resolves to a loopback address {fact['addresses']}; {again}")
        lost = [peer for peer in names if not fact["peers"].get(peer)]
        if lost:
            raise UserError(f"node {name} cannot resolve {', '.join(lost)}; {again}")
        if fact["shm_bytes"] < LEAST_SHM_BYTES:
            raise UserError(f"node {name}: /dev/shm has {fact['shm_bytes']} bytes, 64 MiB are needed; {again}")
        found = {"cpus": fact["cpu_limit_cores"], "memory_bytes": fact["memory_limit_bytes"]}
        if problem := limits.wrong(found, container_limits.now(self._containers[name])):
            raise UserError(f"node {name}: {problem}; {again}")

    def _carry(self, volume: str, members: dict[str, Path | None]) -> None:
        volumes.carry(self._client, self._containers["trainer-0"].image.id, self._project, volume, members)

    def push_data(self, folder: Path) -> None:
        self._data = f"/data/{folder.name}"
        if folder.name in self._data_present:
            return
        # The manifest goes last: a folder without it is incomplete, and nobody reads it.
        files = sorted(folder.iterdir(), key=lambda path: path.name == "manifest.json")
        self._carry("data", {f"{folder.name}/{path.name}": path for path in files})

    def push_checkpoint(self, job: Job, folder: Path | None) -> None:
        within = f"{job.run_id}/resume"
        self._resume = f"/runs/{within}" if folder else ""
        if folder:
            files = sorted(folder.iterdir(), key=lambda path: path.name == COMPLETE)
            folders = dict.fromkeys((job.run_id, within))
            self._carry("runs", folders | {f"{within}/{path.name}": path for path in files})

    def start(self, job: Job, seat: Seat, said: Queue) -> RankHandle:
        request = job.request(
            seat,
            PYTHON,
            self.limits[seat.node],
            bool(self._links) and self._links[seat.node].shapes,
            MASTER_ADDR=self.node_name(0),
            MASTER_PORT=str(self._port),
            SYNCBED_DATA=self._data,
            SYNCBED_OUT=f"/runs/{job.run_id}",
            SYNCBED_RESUME=self._resume,
        )
        command = [PYTHON, "-m", "node.launcher", "run"]
        container = self._containers[self.node_name(seat.node)]
        mark = {LAUNCHER: job.run_id}
        with sdk.guard():
            exec_id = self._api.exec_create(container.id, command, stdin=True, environment=mark)["Id"]
            stream = self._api.exec_start(exec_id, socket=True)
        return DockerRank(stream, request, seat.rank, said, Execution(container, exec_id, job.run_id))

    def held(self, job: Job, warn: Callable[[str], None]) -> None:
        self._held = True
        nodes = [self._containers[self.node_name(node)] for node in range(job.spec.nodes)]
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self._bring_about, nodes, self.limits, self._links or [None] * len(nodes)))
        if self._links and len(nodes) > 1:
            found = wires.verified(self._client, nodes, self._links, warn)
            self.links = [link.facts() | {"measured": seen} for link, seen in zip(self._links, found, strict=True)]

    def _bring_about(self, container, wanted: limits.Limits, link: Link | None) -> None:
        with sdk.guard():
            container.reload()  # another run may have taken place since it was looked at
            container_limits.put(container, wanted)
        if link or container.name in self._shaped:
            self._shaped.add(container.name)
            wires.shape(self._client, container, self._project, link)

    def strike(self, fault: Fault) -> None:
        self._faults.strike(fault)

    def relieve(self, fault: Fault) -> None:
        self._faults.relieve(fault)

    def fetch(self, job: Job, path: str) -> str:
        node, inside = self._containers[self.node_name(0)], f"/runs/{job.run_id}/{path}"
        target = job.run_folder / path
        part = target.with_name(f".{target.name}.part")
        try:
            with sdk.guard():
                archives.fetch(node, inside, part)
                part.replace(target)
                node.exec_run(["rm", "-rf", inside])  # the volume need not hold it as well
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return path

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

    def again(self, job: Job, seconds: float, stop: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        names = [self.node_name(node) for node in range(job.spec.nodes)]
        while not stop():
            try:
                with sdk.guard():
                    for name in names:
                        self._containers[name].reload()
                with ThreadPoolExecutor(len(names)) as pool:
                    facts = list(pool.map(lambda name: inspection.node_facts(self._containers[name]), names))
                if holder := next((f["run"] for f in facts if f["run"] not in (None, job.run_id)), None):
                    raise Busy(holder)
                problem = next(filter(None, map(self._not_ready, names, facts, [names] * len(names))), None)
            except (UserError, RunFailed) as error:
                if isinstance(error, Busy):
                    raise
                problem = str(error)
            if problem is None:
                self._faults.mend([fact["shaped"] for fact in facts])
                self._port = facts[0]["free_port"]
                return
            if time.monotonic() > until:
                raise UserError(f"the nodes were not back within {seconds:g} s: {problem}")
            time.sleep(0.5)

    def _not_ready(self, name: str, fact: dict, names: list[str]) -> str | None:
        """Why a node that answers cannot take part yet."""
        if fact["run"]:
            return f"node {name} is still held by what was lost"
        lost = [peer for peer in names if not fact["peers"].get(peer)]
        return f"node {name} cannot resolve {', '.join(lost)}" if lost else None

    def release(self, job: Job) -> None:
        with sdk.guard():
            nodes = [self._containers[self.node_name(node)] for node in range(job.spec.nodes)]
        if self._held:  # else they are another's, with what that one brought about
            shaped = {container: container.name in self._shaped for container in nodes}
            wires.take_back(self._client, shaped, self._project, nodes[0], job.run_id)
        with sdk.guard():
            nodes[0].exec_run(["rm", "-rf", f"/runs/{job.run_id}"])
