"""Docker's SDK: connect to the engine, and turn what it raises into one clear line."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import docker
import requests
from docker.context import ContextAPI
from docker.errors import APIError, DockerException, NotFound

from monitor.errors import NoEngine, RunFailed, UserError

_ANSWER_SECONDS = 5  # an engine that does not say its version within this time is not used
_TIMEOUT_SECONDS = 120  # of one request; removing a container on a busy machine can take half a minute


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
        version = first.api.api_version
        first.close()
        return _client(version, _TIMEOUT_SECONDS)


def _client(version: str, timeout_seconds: int) -> docker.DockerClient:
    if not os.environ.get("DOCKER_HOST"):
        context = ContextAPI.get_current_context()
        if context and context.name != "default":
            tls = context.TLSConfig or False
            return docker.DockerClient(base_url=context.Host, tls=tls, version=version, timeout=timeout_seconds)
    return docker.from_env(version=version, timeout=timeout_seconds)


@contextmanager
def guard() -> Iterator[None]:
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
