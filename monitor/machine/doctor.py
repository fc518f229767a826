"""`syncbed doctor`: what this machine has, what is missing, and what would fix it."""

import gzip
import importlib.metadata
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil
import requests
from docker import DockerClient
from docker.errors import DockerException

from monitor.capabilities import RUNTIMES
from monitor.cluster.settings import DEFAULT_PORTS, SETTINGS
from monitor.conditions.amounts import whole
from monitor.engine import compose, container_limits, images, inspection, naming, sdk
from monitor.engine.naming import project
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.ports import check_port
from monitor.serve import cluster_host
from monitor.serve.local_host import SERVING_PORT, LocalHost
from node import limits

OK, WARN, FAIL = "ok", "warn", "fail"
_IMAGES_BYTES = 8e9  # a first build where only CUDA wheels can be had
_RUN_BYTES = 1e9  # data set, checkpoints, results
_LEAST_MEMORY = 4 * 2**30  # four ranks of VGG-11
_OLDEST_API = (1, 41)


@dataclass(frozen=True)
class Finding:
    """One line of the report. `runtime`: the one that cannot be used when this fails, None when neither hangs on it."""

    check: str
    state: str  # OK, WARN, FAIL
    found: str
    fix: str = ""
    runtime: str | None = None


def command(settings: dict[str, str], args) -> int:
    """Print every finding. Exit code 0 when a run is possible in one runtime at least."""
    refuse_unknown(settings, SETTINGS)
    project(settings)
    for name in DEFAULT_PORTS.keys() & settings.keys():
        whole(name, settings[name], 1, 65535)
    findings = examine(settings)
    possible = runtimes(findings)
    if args.json:
        print(json.dumps({"findings": [asdict(f) for f in findings], "runtimes": possible}))
    else:
        for finding in findings:
            fix = f"  -> {finding.fix}" if finding.fix else ""
            print(f"{finding.state:5}{finding.check:16}{finding.found}{fix}")
        print(f"runs are possible with RUNTIME={' or '.join(possible)}" if possible else "no run is possible yet")
    return 0 if possible else 1


def examine(settings: dict[str, str]) -> list[Finding]:
    """Everything, engine first, for the cluster and ports that settings name. A check that breaks is a finding."""
    findings = list(_guarded("engine", "docker", partial(_engine, settings)))
    for name, check in (
        ("memory", _memory),
        ("disk", _disk),
        ("torch", _torch),
        ("serving", partial(_serving, settings)),
        ("kernel", _kernel),
    ):
        findings += _guarded(name, None, check)
    return findings


def runtimes(findings: list[Finding]) -> list[str]:
    """The runtimes that nothing failed for."""
    broken = {f.runtime for f in findings if f.state == FAIL}
    return [name for name in RUNTIMES if name not in broken]


def _guarded(name: str, runtime: str | None, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        with sdk.guard():
            yield from check()
    except (UserError, OSError) as error:
        text, _, fix = str(error).partition(": ")
        yield Finding(name, FAIL if runtime else WARN, text, fix, runtime)


def _engine(settings: dict[str, str]) -> Iterator[Finding]:
    client = sdk.connect()
    info = client.info()
    yield Finding("engine", OK, f"Docker {info['ServerVersion']}, {info['NCPU']} cores, storage {info['Driver']}")
    version = client.api.api_version
    if tuple(map(int, version.split("."))) >= _OLDEST_API:
        yield Finding("engine API", OK, f"{version} (negotiated)", "", "docker")
    else:
        yield Finding("engine API", FAIL, f"{version} (negotiated)", "an engine from 20.10 on is needed", "docker")
    yield from _guarded("compose", "docker", _compose)
    yield _limits(info)
    yield from _changed(client, settings)
    yield from _guarded("docker disk", "docker", lambda: _docker_disk(client, info))
    yield from _ports(client, settings)
    yield _registry(client)
    yield _bases(settings.get("BASE_IMAGE"))


def _compose() -> Iterator[Finding]:
    command, version = compose.compose_command()
    kind = "plugin" if command[-1] == "compose" else command[-1]
    yield Finding("compose", OK, f"{version} ({kind})")


def _limits(info: dict) -> Finding:
    cgroup = f"cgroup v{info.get('CgroupVersion', '1')}, {info.get('CgroupDriver', '?')} driver"
    if info["MemoryLimit"] and info["CpuCfsQuota"]:
        return Finding("limits", OK, cgroup)
    controllers = {"memory": info["MemoryLimit"], "cpu": info["CpuCfsQuota"]}
    missing = [name for name, present in controllers.items() if not present]
    return Finding(
        "limits",
        FAIL,
        f"{cgroup}: no limit on {' and '.join(missing)}",
        "a rootless engine needs cgroup v2 with these controllers delegated (systemd: Delegate=yes)",
        "docker",
    )


def _changed(client: DockerClient, settings: dict[str, str]) -> Iterator[Finding]:
    """Nodes whose limits or link differ from what the cluster gave them."""
    label = f"{naming.PROJECT_LABEL}={project(settings)}"
    fix = "a run's own, or left by one that was killed: the next run and 'make clean' take it back"
    for node in client.containers.list(filters={"label": [label, f"{naming.ROLE_LABEL}=node"]}):
        if problem := limits.wrong(container_limits.now(node), container_limits.original(node)):
            yield Finding("limits", WARN, f"{node.name}: {problem}", fix)
        with suppress(RunFailed):
            facts = inspection.node_facts(node)
            if facts["shaped"] and not facts["run"]:
                yield Finding("links", WARN, f"{node.name}: a run that was killed left its link shaped or cut", fix)


def _docker_disk(client: DockerClient, info: dict) -> Iterator[Finding]:
    """Room for the images where the node image is not built yet, else for runs."""
    if not Path(info["DockerRootDir"]).is_dir():
        yield Finding("docker disk", OK, "the engine's disk cannot be seen from here")
        return
    free = shutil.disk_usage(info["DockerRootDir"]).free
    if any(image.tags for image in client.images.list("syncbed-trainer")):
        needed, image = _RUN_BYTES, "is here"
    else:
        needed, image = _IMAGES_BYTES, "not built yet"
    text = f"{free / 1e9:.0f} GB free at {info['DockerRootDir']}, node image {image}"
    if free > needed:
        yield Finding("docker disk", OK, text, "", "docker")
    else:
        yield Finding("docker disk", FAIL, text, "docker system prune frees some", "docker")


def _ports(client: DockerClient, settings: dict[str, str]) -> Iterator[Finding]:
    name = project(settings)
    if client.containers.list(filters={"label": f"{naming.PROJECT_LABEL}={name}"}):
        yield Finding("ports", OK, f"cluster {name} is up")
        return
    for setting, default in DEFAULT_PORTS.items():
        port = settings.get(setting, str(default))
        try:
            check_port(setting, whole(setting, port, 1, 65535))
            yield Finding("ports", OK, f"{setting}={port} is free")
        except UserError as error:
            yield Finding("ports", WARN, str(error).split(";")[0], f"make cluster-up {setting}=...{naming.words(name)}")


def _registry(client: DockerClient) -> Finding:
    """Asked through the engine, which has the proxy settings that count. No image is pulled."""
    try:
        client.images.get_registry_data(images.PYTHON_IMAGE)
    except (DockerException, requests.RequestException) as error:
        reason = sdk.one_line(str(getattr(error, "explanation", None) or error))
        if shutil.which("debootstrap") and os.geteuid() == 0:
            fix = "base images are built from Debian packages; grafana is left out"
        else:
            fix = "images from Debian packages need root and debootstrap; or name one with BASE_IMAGE="
        return Finding("image registry", WARN, f"does not answer ({reason})", fix)
    return Finding("image registry", OK, f"has {images.PYTHON_IMAGE}")


def _bases(base: str | None) -> Finding:
    """Whether base images are held to their content. `base`: BASE_IMAGE."""
    if names := images.by_tag(base):
        text = f"by tag, which a registry can move: {', '.join(names)} (docs/explanation/security.md)"
        return Finding("base images", OK, text)
    return Finding("base images", OK, "by digest")


def _memory() -> Iterator[Finding]:
    total, free = psutil.virtual_memory().total, psutil.virtual_memory().available
    text = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB available, {os.cpu_count()} cores"
    if free > _LEAST_MEMORY:
        yield Finding("memory", OK, text)
    else:
        yield Finding("memory", WARN, text, "close something, or train on fewer nodes (NODES=2)")


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    if free > _RUN_BYTES:
        yield Finding("disk", OK, f"{free / 1e9:.0f} GB free here")
    else:
        yield Finding("disk", WARN, f"{free / 1e9:.0f} GB free here", "1 GB is wanted")


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", FAIL, "not in this environment", "'make torch' installs it, for RUNTIME=local", "local")
    else:
        yield Finding("torch", OK, f"{importlib.metadata.version('torch')} in this environment, for RUNTIME=local")


def _serving(settings: dict[str, str]) -> Iterator[Finding]:
    """The servers of models: this machine's, and the cluster's that the settings name."""
    places: list[LocalHost | cluster_host.ClusterHost] = [LocalHost()]
    with suppress(UserError):  # no engine: said above
        if (cluster := cluster_host.find(project(settings), required=False)) is not None:
            places.append(cluster)
    servers = [(place, port) for place in places if (port := place.port()) is not None]
    for place, port in servers:
        end = f"RUNTIME={place.name}; make serve-stop{place.words} ends it"
        yield Finding("serving", OK, f"models are served on 127.0.0.1:{port}, {end}")
    if servers:
        return
    try:
        check_port("PORT", SERVING_PORT)
        yield Finding("serving", OK, f"nothing is served; port {SERVING_PORT} is free")
    except UserError as error:
        yield Finding("serving", WARN, str(error).split(";")[0], "make serve PORT=...")


def _kernel() -> Iterator[Finding]:
    """Which ways of shaping a link this kernel has; a run does not need them."""
    release = os.uname().release
    configs = [Path("/proc/config.gz"), Path(f"/boot/config-{release}")]
    config = next((path for path in configs if path.exists()), None)
    if config is None:
        yield Finding("kernel", OK, f"{release}; its configuration is not shown, so link shaping is not known")
        return
    content = config.read_bytes()
    text = (gzip.decompress(content) if config.suffix == ".gz" else content).decode()
    states = []
    for name in ("tbf", "netem"):
        present = f"CONFIG_NET_SCH_{name.upper()}=" in text
        states.append(f"{name} there" if present else f"{name} missing")
    yield Finding("kernel", OK, f"{release}; link shaping: {', '.join(states)}")
