"""The cluster's images: pulled where a registry answers, built from Debian packages where none does.

Every image is tagged with a key made of all that goes into it, so that a second build of the same thing is one look-up.
"""

import hashlib
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from docker import DockerClient
from docker.errors import APIError, ImageNotFound

from monitor import checkout
from monitor.console import say
from monitor.engine import compose, sdk
from monitor.engine.alone import alone
from monitor.errors import RunFailed, UserError, refuse_unknown
from trainer.files import new_file, write_whole
from trainer.names import in_folder

SETTINGS = {
    "BASE_IMAGE": "the image under the nodes: Debian-like, Python 3.10 or newer with venv",
    "WHEEL_INDEX": "a Python package index that is asked before the default one",
    "CA_BUNDLE": "file of CA certificates that builds trust (default: what SSL_CERT_FILE or the like names)",
}
PYTHON_IMAGE = "python:3.12.11-slim-bookworm"
PROMETHEUS_IMAGE = "prom/prometheus:v3.5.0"
GRAFANA_IMAGE = "grafana/grafana:12.1.1"
DEBIAN_BASE = "syncbed-debian:bookworm"  # built here, from packages
DEBIAN_PROMETHEUS = "syncbed-prometheus-debian:bookworm"
_HEALTH = ("images/healthy.sh", "images/http-ok.sh")  # what health checks run
_CODE_FOLDERS = ("trainer", "node", "serving")
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


@dataclass(frozen=True)
class Images:
    """Tags to start a cluster from. `grafana` is None where it cannot be had."""

    trainer: str
    prometheus: str
    grafana: str | None


def build(settings: dict[str, str], args) -> int:
    """`syncbed images`: pull or build everything, and ask the registry again should it have failed before."""
    refuse_unknown(settings, SETTINGS)
    client = sdk.connect()
    with sdk.guard():
        tags = ensure(client, settings, ask_again=True)
    print(f"images: {tags.trainer}, {tags.prometheus}, {tags.grafana or 'no grafana'}")
    return 0


def code_hash() -> str:
    """12 hex digits that stand for the code in the node image: each change of it changes them."""
    return _digest(*_CODE_FOLDERS)


def ensure(client: DockerClient, settings: dict[str, str], ask_again: bool = False) -> Images:
    """Every image the cluster needs, building what is missing. Progress goes to stderr, build output to .build/.

    One command at a time builds: another one waits, and finds the images there.

    ask_again: try the registry even where an earlier try ended with images built from Debian packages.
    """
    if not (checkout.ROOT / "compose.yaml").exists():
        raise UserError("images are built from a checkout of syncbed: run this in one (its compose.yaml is not there)")
    index = settings.get("WHEEL_INDEX", "")
    _check_index(index)
    with alone("images", "the images"):
        return _ensure(client, settings, index, ask_again)


def _ensure(client: DockerClient, settings: dict[str, str], index: str, ask_again: bool) -> Images:
    ca = _copy_ca(settings.get("CA_BUNDLE"))
    registry = _Registry(client, ask_again)
    # All bases come first: what cannot be had is known before anything is built for minutes.
    base = _base(registry, settings.get("BASE_IMAGE"))
    prometheus_base = _prometheus_base(registry)
    grafana_base = registry.get(GRAFANA_IMAGE, None)
    if grafana_base is None:
        say(f"grafana is left out, {GRAFANA_IMAGE} cannot be pulled ('make images' tries again); all else works")
    return Images(
        trainer=_trainer(client, base, index, ca),
        prometheus=_prometheus(client, prometheus_base),
        grafana=_grafana(client, grafana_base) if grafana_base else None,
    )


def _check_index(index: str) -> None:
    """Refuse what is no URL, and what may hold a secret: build arguments stay in an image's history. Raises UserError.

    The Makefile has the same check for local runs. A secret is not repeated in the message.
    """
    if not index.startswith("file://") and re.search("[@?#]", index):
        raise UserError(
            "WHEEL_INDEX: an address with a user, password or query would stay in the image's history and in logs; "
            "give it without, and name a mirror or proxy that asks for none (make torch reads ~/.netrc)"
        )
    if index and not re.match(r"(https?|file)://", index):
        raise UserError(f"WHEEL_INDEX={index}: the URL of a Python package index, as https://host/path")


def _trainer(client: DockerClient, base: str, index: str, ca: str) -> str:
    key = _key(client, base, index, ca, _digest("images/trainer", *_HEALTH, *_CODE_FOLDERS))
    arguments = {"BASE_IMAGE": base, "WHEEL_INDEX": index, "CODE": code_hash()}
    return _image(client, f"syncbed-trainer:{key}", "images/trainer/Dockerfile", arguments)


def _prometheus(client: DockerClient, base: str) -> str:
    key = _key(client, base, _digest("images/prometheus", *_HEALTH))
    return _image(client, f"syncbed-prometheus:{key}", "images/prometheus/Dockerfile", {"PROMETHEUS_IMAGE": base})


def _grafana(client: DockerClient, base: str) -> str:
    key = _key(client, base, _digest("grafana", "images/healthy.sh"))
    return _image(client, f"syncbed-grafana:{key}", "grafana/Dockerfile", {"GRAFANA_IMAGE": base})


def remove_old(client: DockerClient) -> list[str]:
    """Remove our images that are neither the latest of their name nor used by a container. Returns their tags."""
    removed = []
    for name in ("syncbed-trainer", "syncbed-prometheus", "syncbed-grafana"):
        tagged = {tag: image.id for image in client.images.list(name) for tag in image.tags}
        latest = tagged.get(f"{name}:latest")
        for tag, image in tagged.items():
            if image == latest or client.api.containers(all=True, quiet=True, filters={"ancestor": image}):
                continue
            try:
                client.images.remove(tag)
                removed.append(tag)
            except APIError:  # a container was started from it just now: it is not old then
                continue
    return removed


class _Registry:
    """Public images: here already, pulled, or given up on once for all when no registry answers."""

    def __init__(self, client: DockerClient, ask_again: bool):
        self.client = client
        # Who had to build a base from packages has no registry; asking it on each start could cost minutes.
        self.silent = not ask_again and _exists(client, DEBIAN_BASE)

    def get(self, image: str, substitute: str | None) -> str | None:
        """The image to build on: the public one, else the substitute that was built here earlier, else None."""
        if _exists(self.client, image):
            return image
        if not self.silent and self.pull(image):
            return image
        return substitute if substitute and _exists(self.client, substitute) else None

    def pull(self, image: str) -> bool:
        say(f"pulling {image}")
        process = subprocess.run([compose.docker_cli(), "pull", "--quiet", image], capture_output=True, text=True)
        if process.returncode == 0:
            return True
        reason = sdk.one_line(process.stderr)
        if "no space left" in reason:
            raise sdk.explain_text(reason)
        say(f"{image} cannot be pulled ({reason})")
        self.silent = True
        return False


def is_pinned(image: str) -> bool:
    """Whether the name holds the image to its content: the engine verifies a digest; a registry can move a tag."""
    return re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", image) is not None


def by_tag(base: str | None) -> list[str]:
    """The bases that are named by a tag alone. `base`: BASE_IMAGE."""
    return [name for name in (base or PYTHON_IMAGE, PROMETHEUS_IMAGE, GRAFANA_IMAGE) if not is_pinned(name)]


def _base(registry: _Registry, image: str | None) -> str:
    """What the node image is built on. `image`: BASE_IMAGE, which goes first. Raises UserError."""
    if not image:
        return registry.get(PYTHON_IMAGE, DEBIAN_BASE) or _debian_base()
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.:/@-]*", image):
        raise UserError(f"BASE_IMAGE={image}: not the name of an image, such as debian:bookworm")
    if "@" in image and not is_pinned(image):
        raise UserError(f"BASE_IMAGE={image}: after the @, a digest is sha256: and 64 hexadecimal digits")
    if not _exists(registry.client, image) and not registry.pull(image):
        raise UserError(f"BASE_IMAGE={image}: neither here nor to be pulled; docker image ls shows what is here")
    return image


def _prometheus_base(registry: _Registry) -> str:
    """Public, or built from Debian's package."""
    image = registry.get(PROMETHEUS_IMAGE, DEBIAN_PROMETHEUS)
    if image is not None:
        return image
    if not _exists(registry.client, DEBIAN_BASE):
        _debian_base()
    return _docker_build("prometheus-debian", "images/prometheus/debian.Dockerfile", DEBIAN_PROMETHEUS)


def _debian_base() -> str:
    _logged("base image from Debian packages", "base", ["sh", str(checkout.ROOT / "images/base/build.sh"), DEBIAN_BASE])
    return DEBIAN_BASE


def _image(client: DockerClient, tag: str, dockerfile: str, arguments: dict[str, str]) -> str:
    """The image of this tag, built unless it is there; `latest` points to it, for a plain `docker compose up`."""
    name = tag.split(":")[0]
    if not _exists(client, tag):
        _docker_build(name.removeprefix("syncbed-"), dockerfile, tag, arguments)
    client.images.get(tag).tag(name, "latest")
    return tag


def _docker_build(name: str, dockerfile: str, tag: str, arguments: dict[str, str] | None = None) -> str:
    cli = compose.docker_cli()
    buildx = subprocess.run([cli, "buildx", "version"], capture_output=True).returncode == 0
    command = [cli, "build", "--file", str(checkout.ROOT / dockerfile), "--tag", tag]
    for argument, value in (arguments or {}).items():
        command += ["--build-arg", f"{argument}={value}"]
    variables = {"DOCKER_BUILDKIT": "1" if buildx else "0"}
    for proxy in ("http_proxy", "https_proxy", "no_proxy"):  # predefined arguments: they leave no trace in the image
        if value := os.environ.get(proxy) or os.environ.get(proxy.upper()):
            command += ["--build-arg", proxy]  # its value, which may hold a password, is in no list of processes
            variables[proxy] = value
    _logged(f"{name} image", name, [*command, str(checkout.ROOT)], variables)
    return tag


def _logged(what: str, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a build with its output in .build/<name>.log; when it fails, its last lines are shown. Raises RunFailed."""
    log = in_folder(checkout.BUILD, f"{name}.log")
    say(f"building the {what} (the first time may take minutes; output in {log.relative_to(checkout.ROOT)})")
    start = time.monotonic()
    log.unlink(missing_ok=True)
    with new_file(log) as out:
        variables = os.environ | (environment or {})
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=variables).returncode
    if code:
        lines = log.read_text(errors="replace").splitlines()
        say("\n".join(lines[-20:]))
        text = "\n".join(lines[-50:])
        if "no space left" in text.lower():
            raise sdk.explain_text(text)
        raise RunFailed(
            f"the {what} could not be built: {sdk.one_line(text)} ({log.relative_to(checkout.ROOT)} has it all)"
        )
    say(f"built the {what} in {time.monotonic() - start:.0f} s")


def _copy_ca(setting: str | None) -> str:
    """Put the CA bundle where the build finds it, an empty file without one. Returns its digest.

    `setting`: CA_BUNDLE; without it the environment may name a bundle. Raises UserError.
    """
    source, origin = setting, "CA_BUNDLE"
    if setting is None:
        origin = next((name for name in _CA_VARIABLES if Path(os.environ.get(name, "")).is_file()), None)
        source = os.environ[origin] if origin else None
    elif not Path(setting).is_file():
        raise UserError(f"CA_BUNDLE={setting}: no such file; give a file of PEM certificates")
    content = Path(source).read_bytes() if source else b""
    if setting and b"BEGIN CERTIFICATE" not in content:
        raise UserError(f"CA_BUNDLE={setting}: holds no certificate in PEM form")
    target = checkout.BUILD / "ca.crt"
    if not target.exists() or target.read_bytes() != content:
        write_whole(target, content)
        if source:
            say(f"builds trust the CA bundle {source} (from {origin})")
    return hashlib.sha256(content).hexdigest()


def _exists(client: DockerClient, image: str) -> bool:
    try:
        client.images.get(image)
        return True
    except ImageNotFound:
        return False


def _key(client: DockerClient, base: str, *parts: str) -> str:
    """12 hex digits that change with the base image (its content, not its name) and with every part."""
    return hashlib.sha256("\n".join([str(client.images.get(base).id), *parts]).encode()).hexdigest()[:12]


def _digest(*places: str) -> str:
    """12 hex digits over the names and contents of all files below these places of the checkout."""
    digest = hashlib.sha256()
    for place in places:
        start = checkout.ROOT / place
        for path in sorted([start] if start.is_file() else start.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(checkout.ROOT).as_posix()
                digest.update(f"{name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
