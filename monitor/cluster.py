"""The cluster of containers: up, down, status, logs. Compose starts it; everything else goes through the SDK."""

import fcntl
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from monitor import engine, images, limits, mending
from monitor.cluster_settings import (
    DOWN_SETTINGS,
    LOG_SETTINGS,
    SETTINGS,
    SHM_BYTES,
    ClusterSettings,
    check_port,
    project,
)
from monitor.engine import PROJECT_LABEL, ROLE_LABEL
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.images import say
from monitor.runtime import wires
from monitor.serve_ports import SERVICE, ports_of

_SERVICE = "com.docker.compose.service"
_HEALTHY_WITHIN_SECONDS = 240


def up(settings: dict[str, str], args) -> int:
    """Start the cluster these settings ask for, or change the running one into it. Nothing changed: nothing is done."""
    start = time.monotonic()
    client = engine.connect()
    _, compose_version = engine.compose_command()
    with engine.guard(), alone(project(settings), f"cluster {project(settings)}"):
        host = client.info()
        wanted = ClusterSettings.from_settings(settings, host["NCPU"], host["MemTotal"])
        present = containers(client, wanted.project)
        check_host_port(client, wanted.project, "PROMETHEUS_PORT", wanted.prometheus_port)
        paused = mending.unpause(present)
        _refuse_while_training(wanted, present)
        made = images.ensure(client, wanted.images)
        if made.grafana:
            check_host_port(client, wanted.project, "GRAFANA_PORT", wanted.grafana_port)
        say(f"starting {wanted.stated()}")
        services = [*wanted.node_names(), "prometheus", *(["grafana"] if made.grafana else [])]
        serving = ports_of(present)
        services += [SERVICE] if serving else []
        remove_containers([c for c in present if c.labels.get(_SERVICE) not in services])
        wanted_now = [c for c in present if c.labels.get(_SERVICE) in services]
        mending.restart([c for c in wanted_now if c in paused or mending.unhealthy(c)])
        try:
            wait = ("--wait", "--wait-timeout", str(_HEALTHY_WITHIN_SECONDS))
            variables = wanted.variables(made) | serving
            engine.compose(wanted.project, variables, "up", "--detach", "--no-build", *wait, *services)
        except UserError as error:
            _show_sick(client, wanted.project)
            raise error
        facts = _verify(client, wanted)
        report = {
            "project": wanted.project,
            "nodes": [{"name": name, **fact} for name, fact in facts.items()],
            "urls": urls(client, wanted.project),
            "seconds": round(time.monotonic() - start, 1),
            "engine": host["ServerVersion"],
            "compose": compose_version,
        }
    if args.json:
        print(json.dumps(report))
        return 0
    for node in report["nodes"]:
        memory = node["memory_limit_bytes"] / 2**30
        cores = f"{node['cpu_limit_cores']:g} core{'s'[: node['cpu_limit_cores'] != 1]}"
        print(f"  {node['name']:12}{node['addresses'][0]:16}{cores}  {memory:.2f} GiB")
    for name, url in report["urls"].items():
        print(f"  {name:12}{url}")
    print(f"cluster {wanted.project} is up, limits read back from inside; {report['seconds']} s")
    return 0


def down(settings: dict[str, str], args) -> int:
    """Remove the project's containers, network and volumes, and say which."""
    if "cluster-up" not in os.environ.get("SYNCBED_GOALS", "").split():  # `make cluster-down cluster-up NODES=2`
        for word, value in settings.items():
            if word in SETTINGS and word not in DOWN_SETTINGS:
                raise UserError(f"{word}={value}: a cluster goes down whole; PROJECT= says which one")
    refuse_unknown(settings, SETTINGS)
    name = project(settings)
    client = engine.connect()
    with engine.guard(), alone(name, f"cluster {name}", needed=False):
        removed = remove_project(client, name)
    tell_removed(removed, args.json, f"cluster {name} was not there: nothing to remove")
    return 0


def status(settings: dict[str, str], args) -> int:
    """Every node: state, health, address, limits, and the run that holds it."""
    refuse_unknown(settings, SETTINGS)
    name = project(settings)
    client = engine.connect()
    with engine.guard():
        present = containers(client, name)
        nodes = [c for c in present if c.labels.get(ROLE_LABEL) == "node"]
        with ThreadPoolExecutor(16) as pool:
            held = list(pool.map(_held_by, nodes))
        rows = [{**_state(c), "run": run} for c, run in zip(nodes, held, strict=True)]
        others = [_state(c) for c in present if c.labels.get(ROLE_LABEL) in ("prometheus", "grafana", SERVICE)]
        report = {"project": name, "nodes": rows, "services": others, "urls": urls(client, name)}
    if args.json:
        print(json.dumps(report))
    elif not present:
        print(f"no cluster {name}: make cluster-up{engine.words(name)} starts one")
    else:
        print(f"{'name':12}{'state':10}{'health':11}{'address':16}{'cores':>6}{'GiB':>7}  run")
        for row in [*rows, *others]:
            size = f"{row['cpus']:>6g}{row['memory_bytes'] / 2**30:>7.2f}"
            print(
                f"{row['name']:12}{row['state']:10}{row['health']:11}{row['address']:16}{size}  {row.get('run') or '-'}"
            )
        for service, url in report["urls"].items():
            print(f"{service}: {url}")
    return 0


def logs(settings: dict[str, str], args) -> int:
    """What the services printed, the last 200 lines of each. NODE= picks one, FOLLOW=1 goes on until Ctrl-C."""
    refuse_unknown(settings, LOG_SETTINGS)
    if settings.get("FOLLOW", "0") not in ("0", "1"):
        raise UserError(f"FOLLOW={settings['FOLLOW']}: 0 or 1")
    name = project(settings)
    client = engine.connect()
    with engine.guard():
        services = [c.labels[_SERVICE] for c in containers(client, name)]
    if not services:
        raise UserError(f"no cluster {name}: make cluster-up{engine.words(name)} starts one")
    if settings.get("NODE", services[0]) not in services:
        raise UserError(f"NODE={settings['NODE']}: one of: {', '.join(services)}")
    command, _ = engine.compose_command()
    options = ["--tail", "200", *(["--follow"] if settings.get("FOLLOW") == "1" else [])]
    chosen = [settings["NODE"]] if "NODE" in settings else []
    return subprocess.run(
        [*command, "-p", name, "-f", str(engine.ROOT / "compose.yaml"), "logs", *options, *chosen]
    ).returncode


def containers(client: DockerClient, name: str) -> list[Container]:
    """The project's services, running or not, nodes first and in rank order."""
    found = client.containers.list(all=True, ignore_removed=True, filters={"label": f"{PROJECT_LABEL}={name}"})
    services = [c for c in found if ROLE_LABEL in c.labels]

    def order(container):
        service, _, rank = container.labels.get(_SERVICE, container.name).rpartition("-")
        return (0, int(rank)) if service == "trainer" else (1, 0)

    return sorted(services, key=order)


def urls(client: DockerClient, name: str) -> dict[str, str]:
    """Where Grafana, Prometheus and the server of models answer, for those that run."""
    found = {}
    for container in containers(client, name):
        for _, bindings in sorted(container.ports.items(), reverse=True):  # of several ports the lowest
            for binding in bindings or ():
                found[container.labels[_SERVICE]] = f"http://{binding['HostIp']}:{binding['HostPort']}"
    return dict(sorted(found.items()))


def remove_project(client: DockerClient, name: str) -> list[str]:
    """Remove all that carries the project's label, however far its start had come. Returns what was removed."""
    mine = {"label": f"{PROJECT_LABEL}={name}"}
    removed = remove_containers(client.containers.list(all=True, ignore_removed=True, filters=mine))
    for kind, listed in (
        ("network", client.networks.list(filters=mine)),
        ("volume", client.volumes.list(filters=mine)),
    ):
        for thing in listed:
            with suppress(NotFound):
                thing.remove()
                removed.append(f"{kind} {thing.name}")
    return removed


@contextmanager
def alone(name: str, what: str, needed: bool = True):
    """One `up` or `down` of a cluster at a time: Compose, run twice at once, makes two networks of one name.

    Raises UserError where the lock cannot be taken; when it is not `needed`, a warning says so and work goes on.
    """
    try:
        images.BUILD.mkdir(exist_ok=True)
        held = (images.BUILD / f"{name}.lock").open("w")
    except OSError as error:
        problem = f"{images.BUILD} cannot be written ({error.strerror})"
        if needed:
            raise UserError(f"{problem}: make it writable; builds are logged there") from None
        say(f"warning: {problem}; let no other command change {what} now")
        held = None
    if held is None:
        yield
        return
    with held as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that is changing {what}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_containers(listed: list[Container]) -> list[str]:
    """Kill and remove containers with their anonymous volumes, all at once. Returns what was removed."""

    def remove(container):
        try:
            container.remove(force=True, v=True)
        except NotFound:
            return None
        except APIError as error:
            if error.status_code != 409:  # someone else is removing it already
                raise
        return f"container {container.name}"

    with ThreadPoolExecutor(16) as pool:
        return sorted(filter(None, pool.map(remove, listed)))


def check_host_port(client: DockerClient, name: str, setting: str, port: int) -> None:
    """Raises UserError when anything but this cluster has the port."""
    if os.environ.get("DOCKER_HOST", "unix").split(":")[0] not in ("unix", "npipe"):
        return  # the port is another machine's: its engine will say so
    holder = next((c for c in client.containers.list(ignore_removed=True) if port in _published(c)), None)
    if holder is None:
        check_port(setting, port)
    elif holder.labels.get(PROJECT_LABEL) != name:
        check_port(setting, port, holder=f"container {holder.name}")


def _published(container: Container) -> list[int]:
    return [int(b["HostPort"]) for bindings in container.ports.values() for b in bindings or () if b["HostPort"]]


def _refuse_while_training(wanted: ClusterSettings, present: list[Container]) -> None:
    """Changing a cluster restarts its nodes: not under a run. Rank 0 of every run is on the first node."""
    for container in present:
        if container.labels.get(_SERVICE) == "trainer-0" and (run := _held_by(container)):
            raise UserError(
                f"run {run} is going on in cluster {wanted.project}: wait for its end, or stop it with Ctrl-C there"
            )


def _verify(client: DockerClient, wanted: ClusterSettings) -> dict[str, dict]:
    """Ask every node, from inside, whether it is what was asked for. Raises RunFailed naming the first that is not."""
    nodes = {c.labels[_SERVICE]: c for c in containers(client, wanted.project) if c.labels[ROLE_LABEL] == "node"}

    def look() -> dict[str, dict]:
        with ThreadPoolExecutor(16) as pool:
            return dict(zip(nodes, pool.map(engine.node_facts, nodes.values()), strict=True))

    facts = look()
    shaped = {node: facts[name]["shaped"] for name, node in nodes.items()}
    if nodes and wires.take_back(client, shaped, wanted.project, next(iter(nodes.values())), "cluster-up"):
        facts = look()  # a run whose orchestrator was killed had taken nothing back
    if list(facts) != wanted.node_names():
        mends = f"make cluster-down cluster-up{engine.words(wanted.project)} mends it"
        raise RunFailed(f"asked for {wanted.nodes} nodes, found {', '.join(facts) or 'none'}: {mends}")
    for rank, (name, fact) in enumerate(facts.items()):
        asked = {
            "hostname": name,
            "rank": rank,
            "world_size": wanted.nodes,
            "cpu_limit_cores": wanted.cpus,
            "memory_limit_bytes": wanted.memory_bytes,
            "shm_bytes": SHM_BYTES,
        }
        for key, value in asked.items():
            got = fact[key]
            if got != value and not (key == "cpu_limit_cores" and got and abs(got - value) < 0.002):
                raise RunFailed(
                    f"{name}: asked for {key}={value}, inside it is {got}; a rootless engine enforces limits only with "
                    "cgroup v2 and its cpu and memory controllers delegated"
                )
    return facts


def _show_sick(client: DockerClient, name: str) -> None:
    """The last lines of every service that is not well, on stderr."""
    for container in containers(client, name):
        state = _state(container)
        if state["state"] != "running" or state["health"] not in ("healthy", "none"):
            say(f"--- {state['name']}: {state['state']}, {state['health']}; its last lines:")
            probe = (container.attrs["State"].get("Health") or {}).get("Log") or []
            say(container.logs(tail=15).decode(errors="replace").rstrip() or "(it printed nothing)")
            if probe and probe[-1]["Output"].strip():
                say(f"health check: {engine.one_line(probe[-1]['Output'])}")


def _state(container: Container) -> dict:
    attributes, state = container.attrs, container.attrs["State"]
    networks = attributes["NetworkSettings"]["Networks"].values()
    return {
        "name": container.labels.get(_SERVICE, container.name),
        "state": state["Status"],
        "health": (state.get("Health") or {}).get("Status", "none"),
        "address": next((n["IPAddress"] for n in networks if n["IPAddress"]), "-"),
        **{name: limit or 0 for name, limit in limits.now(container).items()},
    }


def _held_by(container: Container) -> str | None:
    """The run that holds this node; None for a free one, and for one that cannot say."""
    if container.status != "running":
        return None
    try:
        return engine.node_facts(container)["run"]
    except UserError:
        return None


def tell_removed(removed: list[str], as_json: bool, nothing: str) -> None:
    """What was removed, or the line that says nothing was."""
    if as_json:
        print(json.dumps({"removed": removed}))
    else:
        print("\n".join(f"removed {what}" for what in removed) or nothing)
