"""The cluster of containers: up, down, status, logs. Compose starts it; everything else goes through the SDK."""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from docker import DockerClient
from docker.models.containers import Container

from monitor import checkout
from monitor.cluster import mending
from monitor.cluster.settings import DOWN_SETTINGS, LOG_SETTINGS, SETTINGS, SHM_BYTES, ClusterSettings
from monitor.console import plain, say, tell_removed
from monitor.engine import compose, container_limits, images, inspection, naming, sdk, warming
from monitor.engine.alone import alone
from monitor.engine.containers import (
    SERVICE_LABEL,
    check_host_port,
    containers,
    remove_containers,
    remove_project,
    urls,
)
from monitor.engine.naming import ROLE_LABEL, project
from monitor.engine.serving_ports import SERVICE, ports_of
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.runtime import wires
from monitor.text import plural

_HEALTHY_WITHIN_SECONDS = 240


def up(settings: dict[str, str], args) -> int:
    """Start the cluster these settings ask for, or change the running one into it. Nothing changed: nothing is done."""
    begin = time.monotonic()
    client = sdk.connect()
    _, compose_version = compose.compose_command()
    with sdk.guard(), alone(project(settings), f"cluster {project(settings)}"):
        host = client.info()
        cluster = ClusterSettings.from_settings(settings, host["NCPU"], host["MemTotal"])
        _start(client, cluster)
        facts = _verify(client, cluster)
        _warm_up(client, cluster.project, facts)
        addresses = urls(client, cluster.project)
    seconds = round(time.monotonic() - begin, 1)
    if args.json:
        nodes = [{"name": name, **node} for name, node in facts.items()]
        engine = {"engine": host["ServerVersion"], "compose": compose_version}
        print(json.dumps({"project": cluster.project, "nodes": nodes, "urls": addresses, "seconds": seconds} | engine))
        return 0
    for name, node in facts.items():
        cores, memory = node["cpu_limit_cores"] or 0.0, node["memory_limit_bytes"] or 0  # verified: both are there
        print(f"  {name:12}{node['addresses'][0]:16}{plural(cores, 'core')}  {memory / 2**30:.2f} GiB")
    for name, url in addresses.items():
        print(f"  {name:12}{url}")
    print(f"cluster {cluster.project} is up, limits read back from inside; {seconds} s")
    return 0


def _start(client: DockerClient, cluster: ClusterSettings) -> None:
    """Bring the cluster up from whatever is there. Raises UserError and RunFailed."""
    present = containers(client, cluster.project)
    check_host_port(client, cluster.project, "PROMETHEUS_PORT", cluster.prometheus_port)
    paused = mending.unpause(present)  # a paused node cannot say whether a run holds it
    _refuse_while_training(cluster, present)
    tags = images.ensure(client, cluster.images)
    if tags.grafana:
        check_host_port(client, cluster.project, "GRAFANA_PORT", cluster.grafana_port)
    say(f"starting {cluster.stated()}")
    services = [*cluster.node_names(), "prometheus"]
    if tags.grafana:
        services.append("grafana")
    serving = ports_of(present)
    if serving:  # a server of models stays, on its ports
        services.append(SERVICE)
    remove_containers([c for c in present if c.labels.get(SERVICE_LABEL) not in services])
    remaining = [c for c in present if c.labels.get(SERVICE_LABEL) in services]
    mending.restart([c for c in remaining if c in paused or mending.unhealthy(c)])
    wait = ("--wait", "--wait-timeout", str(_HEALTHY_WITHIN_SECONDS))
    try:
        variables = cluster.variables(tags) | serving
        compose.compose(cluster.project, variables, "up", "--detach", "--no-build", *wait, *services)
    except UserError:
        _show_sick(client, cluster.project)
        raise


def _warm_up(client: DockerClient, project: str, facts: dict[str, inspection.NodeFacts]) -> None:
    """Let the nodes get ready for the first run."""
    nodes = {container.labels[SERVICE_LABEL]: container for container in containers(client, project)}
    warming.warm_up(client, {nodes[name]: fact for name, fact in facts.items()})


def down(settings: dict[str, str], args) -> int:
    """Remove the project's containers, network and volumes, and say which."""
    if "cluster-up" not in os.environ.get("SYNCBED_GOALS", "").split():  # `make cluster-down cluster-up NODES=2`
        for word, value in settings.items():
            if word in SETTINGS and word not in DOWN_SETTINGS:
                raise UserError(f"{word}={value}: a cluster goes down whole; PROJECT= says which one")
    refuse_unknown(settings, SETTINGS)
    name = project(settings)
    client = sdk.connect()
    with sdk.guard(), alone(name, f"cluster {name}", needed=False):
        removed = remove_project(client, name)
    tell_removed(removed, args.json, f"cluster {name} was not there: nothing to remove")
    return 0


def status(settings: dict[str, str], args) -> int:
    """Every node: state, health, address, limits, and the run that holds it."""
    refuse_unknown(settings, SETTINGS)
    name = project(settings)
    client = sdk.connect()
    with sdk.guard():
        present = containers(client, name)
        nodes = [c for c in present if c.labels.get(ROLE_LABEL) == "node"]
        with ThreadPoolExecutor(16) as pool:
            runs = list(pool.map(_held_by, nodes))
        rows = [_state(node) | {"run": run} for node, run in zip(nodes, runs, strict=True)]
        others = [_state(c) for c in present if c.labels.get(ROLE_LABEL) in ("prometheus", "grafana", SERVICE)]
        addresses = urls(client, name)
    if args.json:
        print(json.dumps({"project": name, "nodes": rows, "services": others, "urls": addresses}))
    elif not present:
        print(f"no cluster {name}: make cluster-up{naming.words(name)} starts one")
    else:
        _show_status([*rows, *others], addresses)
    return 0


def _show_status(rows: list[dict], addresses: dict[str, str]) -> None:
    print(f"{'name':12}{'state':10}{'health':11}{'address':16}{'cores':>6}{'GiB':>7}  run")
    for row in rows:
        size = f"{row['cpus']:>6g}{row['memory_bytes'] / 2**30:>7.2f}"
        run = plain(str(row.get("run") or "-"))  # as the node's lock file has it
        print(f"{row['name']:12}{row['state']:10}{row['health']:11}{row['address']:16}{size}  {run}")
    for service, url in addresses.items():
        print(f"{service}: {url}")


def logs(settings: dict[str, str], args) -> int:
    """What the services printed, the last 200 lines of each. NODE= picks one, FOLLOW=1 goes on until Ctrl-C."""
    refuse_unknown(settings, LOG_SETTINGS)
    if settings.get("FOLLOW", "0") not in ("0", "1"):
        raise UserError(f"FOLLOW={settings['FOLLOW']}: 0 or 1")
    name = project(settings)
    client = sdk.connect()
    with sdk.guard():
        services = [c.labels[SERVICE_LABEL] for c in containers(client, name)]
    if not services:
        raise UserError(f"no cluster {name}: make cluster-up{naming.words(name)} starts one")
    if settings.get("NODE", services[0]) not in services:
        raise UserError(f"NODE={settings['NODE']}: one of: {', '.join(services)}")
    command, _ = compose.compose_command()
    command += ["-p", name, "-f", str(checkout.ROOT / "compose.yaml"), "logs", "--tail", "200"]
    if settings.get("FOLLOW") == "1":
        command.append("--follow")
    if "NODE" in settings:
        command.append(settings["NODE"])
    return subprocess.run(command).returncode


def _refuse_while_training(cluster: ClusterSettings, present: list[Container]) -> None:
    """Changing a cluster restarts its nodes: not under a run. Rank 0 of every run is on the first node."""
    for container in present:
        if container.labels.get(SERVICE_LABEL) == "trainer-0" and (run := _held_by(container)):
            raise UserError(
                f"run {run} is going on in cluster {cluster.project}: wait for its end, or stop it with Ctrl-C there"
            )


def _verify(client: DockerClient, cluster: ClusterSettings) -> dict[str, inspection.NodeFacts]:
    """Ask every node, from inside, whether it is what was asked for. Raises RunFailed naming the first that is not."""
    nodes = {c.labels[SERVICE_LABEL]: c for c in containers(client, cluster.project) if c.labels[ROLE_LABEL] == "node"}

    def look() -> dict[str, inspection.NodeFacts]:
        with ThreadPoolExecutor(16) as pool:
            return dict(zip(nodes, pool.map(inspection.node_facts, nodes.values()), strict=True))

    facts = look()
    shaped = {node: facts[name]["shaped"] for name, node in nodes.items()}
    if nodes and wires.take_back(client, shaped, cluster.project, next(iter(nodes.values())), "cluster-up"):
        facts = look()  # a run whose orchestrator was killed had taken nothing back
    if list(facts) != cluster.node_names():
        mends = f"make cluster-down cluster-up{naming.words(cluster.project)} mends it"
        raise RunFailed(f"asked for {cluster.nodes} nodes, found {', '.join(facts) or 'none'}: {mends}")
    for rank, (name, fact) in enumerate(facts.items()):
        expected = {
            "hostname": name,
            "rank": rank,
            "world_size": cluster.nodes,
            "cpu_limit_cores": cluster.cpus,
            "memory_limit_bytes": cluster.memory_bytes,
            "shm_bytes": SHM_BYTES,
        }
        for key, value in expected.items():
            actual = fact[key]
            rounded = key == "cpu_limit_cores" and actual and abs(actual - value) < 0.002  # to whole microseconds
            if actual != value and not rounded:
                raise RunFailed(
                    f"{name}: asked for {key}={value}, inside it is {actual}; a rootless engine enforces limits only "
                    "with cgroup v2 and its cpu and memory controllers delegated"
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
                say(f"health check: {sdk.one_line(probe[-1]['Output'])}")


def _state(container: Container) -> dict:
    attributes, state = container.attrs, container.attrs["State"]
    networks = attributes["NetworkSettings"]["Networks"].values()
    limits = container_limits.now(container)
    return {
        "name": container.labels.get(SERVICE_LABEL, container.name),
        "state": state["Status"],
        "health": (state.get("Health") or {}).get("Status", "none"),
        "address": next((n["IPAddress"] for n in networks if n["IPAddress"]), "-"),
        "cpus": limits["cpus"] or 0,
        "memory_bytes": limits["memory_bytes"] or 0,
    }


def _held_by(container: Container) -> str | None:
    """The run that holds this node; None for a free one, and for one that cannot say."""
    if container.status != "running":
        return None
    try:
        return inspection.node_facts(container)["run"]
    except UserError:
        return None
