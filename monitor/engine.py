"""The Docker engine and Compose: the one place that reaches them, and that turns what they say into one clear line."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import docker
import requests
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, NotFound

from monitor.errors import NoEngine, RunFailed, UserError

ROOT = Path(__file__).resolve().parents[1]  # of the checkout: compose.yaml, images/
PROJECT_LABEL, ROLE_LABEL, CODE_LABEL = "syncbed.project", "syncbed.role", "syncbed.code"
DEFAULT_PROJECT = "syncbed"
_ANSWER_SECONDS = 5  # an engine that does not say its version within this time is not used
_TIMEOUT_SECONDS = 120  # of one request; removing a container on a busy machine can take half a minute


def words(project: str) -> str:
    """What names a cluster behind `make cluster-up` and its like, in lines that say what would help."""
    return "" if project == DEFAULT_PROJECT else f" PROJECT={project}"


def connect() -> docker.DockerClient:
    """A client of the engine the `docker` command would talk to (DOCKER_HOST, else the current context).

    An engine that does not answer is given up within seconds; requests to one that does may take longer.

    The API version is negotiated: engines from 20.10 (1.41) to 29 (minimum 1.44) are in use. Raises UserError when
    the engine does not answer or may not be used.
    """
    with guard():
        try:
            first = _client("auto", _ANSWER_SECONDS)
        except ValueError as error:  # the SDK's parsing of addresses
            where = f"DOCKER_HOST={os.environ.get('DOCKER_HOST', '')}"
            raise UserError(f"{where}: no address of an engine ({error}); unix:///var/run/docker.sock is one") from None
        version = first.api._version
        first.close()
        return _client(version, _TIMEOUT_SECONDS)


def _client(version: str, timeout_seconds: float) -> docker.DockerClient:
    if not os.environ.get("DOCKER_HOST"):
        context = ContextAPI.get_current_context()
        if context and context.name != "default":
            tls = context.TLSConfig or False
            return docker.DockerClient(base_url=context.Host, tls=tls, version=version, timeout=timeout_seconds)
    return docker.from_env(version=version, timeout=timeout_seconds)


@contextmanager
def guard():
    """Any error of the Docker SDK inside leaves as a UserError of one line."""
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        raise explain(error) from error


def explain(error: Exception) -> UserError:
    """What went wrong between us and the engine, and what would do."""
    text = str(error)
    where = os.environ.get("DOCKER_HOST", "the default socket")
    if isinstance(error, APIError) and not isinstance(error, NotFound):
        return explain_text(str(error.explanation or text))
    if isinstance(error, NotFound):
        return UserError(f"Docker: {error.explanation or text}")
    if "PermissionError" in text or "Permission denied" in text:
        return UserError(
            "no permission to use Docker: join its group (sudo usermod -aG docker $USER, then log in again); "
            "RUNTIME=local runs without it"
        )
    if isinstance(error, requests.exceptions.Timeout) or "timed out" in text:
        return UserError(
            f"the Docker engine at {where} does not answer in time: restarting it helps (sudo systemctl restart "
            "docker); RUNTIME=local runs without it"
        )
    if any(word in text for word in ("FileNotFoundError", "ConnectionRefused", "Connection refused", "Max retries")):
        return NoEngine(
            f"no Docker engine answers at {where}: start it (sudo systemctl start docker); "
            "RUNTIME=local runs without it"
        )
    return UserError(f"Docker: {one_line(text)}")


def explain_text(text: str) -> UserError:
    """The same for what the engine, `docker` or Compose printed."""
    low = text.lower()
    if "no space left" in low:
        return RunFailed("disk full: docker system df shows what Docker holds, docker system prune frees unused parts")
    if "port is already allocated" in low or "address already in use" in low:
        return UserError(f"a port is taken; PROMETHEUS_PORT= and GRAFANA_PORT= choose others ({one_line(text)})")
    if "permission denied" in low and "docker" in low and "sock" in low:
        return explain(DockerException("Permission denied"))
    if "cannot connect to the docker daemon" in low:
        return explain(DockerException("Connection refused"))
    if "could not find an available" in low and "pool" in low:
        return UserError("Docker has no subnet left for another network: docker network prune frees unused ones")
    return RunFailed(f"Docker: {one_line(text)}")


def one_line(text: str) -> str:
    """The last line that says something, without runs of blanks: errors come last."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def docker_cli() -> str:
    """The `docker` command, which builds images. Raises UserError when it is missing."""
    found = shutil.which("docker")
    if not found:
        raise UserError("the docker command is missing: install Docker (sudo apt-get install docker.io)")
    return found


def compose_command() -> tuple[list[str], str]:
    """The command of Compose v2 and its version. Raises UserError when there is none."""
    old = ""
    for command in ([docker_cli(), "compose"], ["docker-compose"]):
        try:
            answer = subprocess.run([*command, "version", "--format", "json"], capture_output=True, timeout=30)
            version = json.loads(answer.stdout)["version"].lstrip("v")
        except (OSError, ValueError, KeyError, subprocess.SubprocessError):
            if command == ["docker-compose"] and shutil.which("docker-compose"):
                old = " (the docker-compose found is version 1)"
            continue
        if int(version.split(".")[0]) >= 2:
            return command, version
    raise UserError(
        f"Docker Compose v2 is missing{old}: install the package docker-compose-plugin (Docker's), docker-compose-v2 "
        "(Ubuntu) or docker-compose from Debian 13, or put its binary at ~/.docker/cli-plugins/docker-compose"
    )


def compose(project: str, variables: dict[str, str], *arguments: str) -> None:
    """Run Compose on our file, quietly. Raises UserError or RunFailed with its last word."""
    command, _ = compose_command()
    done = subprocess.run(
        [*command, "--progress", "quiet", "-p", project, "-f", str(ROOT / "compose.yaml"), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise explain_text(done.stderr or done.stdout)


def node_facts(container) -> dict:
    """What `monitor.node check` says inside a node: limits, addresses, code, the run that holds it, leftovers it ended.

    Raises RunFailed when the node cannot say it.
    """
    with guard():
        for _ in range(5):  # Docker 20.10 has been seen to lose all output of a command that went well
            code, (out, err) = container.exec_run(["python", "-m", "monitor.node", "check"], demux=True)
            if out or code:
                break
    try:
        return json.loads(out or b"")
    except ValueError:
        reason = one_line((err or out or b"").decode(errors="replace"))
        mends = f"make cluster-up{words(container.labels.get(PROJECT_LABEL, DEFAULT_PROJECT))} mends it"
        raise RunFailed(f"{container.name} does not answer: {reason} (exit code {code}); {mends}") from None
