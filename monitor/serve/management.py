"""The management interface of a server of models, as a client: register, list, unregister."""

import re

import requests

from monitor.errors import RunFailed, UserError
from monitor.serve.local_host import ask

_TIMEOUT_SECONDS = 60


def register(port: int, url: str, name: str, batching: dict, told: bool, words: str) -> str:
    """Have the artefact served under the name; its version. `told`: the user named how to batch.

    `words`: what names the place behind `make serve-stop`.
    """
    present = manage(port, "GET", f"/models/{name}/all", allowed=(404,))
    already = next((one for one in present if one["modelUrl"] == url), None) if isinstance(present, list) else None
    if already is None:
        words = {"url": url, "model_name": name, "initial_workers": 1, "synchronous": "true"}
        said = manage(port, "POST", "/models", words | batching)
        return re.search(r"Version: (\S+)", said["status"])[1]
    if told and (already["batchSize"], already["maxBatchDelay"]) != tuple(batching.values()):
        raise UserError(
            f"NAME={name}: served already, batched in another way; make serve-stop NAME={name}{words} first"
        )
    manage(port, "PUT", f"/models/{name}/{already['modelVersion']}/set-default")
    return already["modelVersion"]


def names(port: int) -> list[str]:
    return [one["modelName"] for one in manage(port, "GET", "/models", {"limit": 1000})["models"]]


def served(port: int) -> set[str]:
    """The artefacts that are in use."""
    return {one["modelUrl"] for name in names(port) for one in manage(port, "GET", f"/models/{name}/all")}


def manage(port: int, method: str, path: str, words: dict | None = None, allowed=()):
    """Ask the server; its answer as JSON. Raises RunFailed with the server's own line."""
    try:
        answer = ask(port + 1, method, path, params=words, timeout=_TIMEOUT_SECONDS)
        said = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise RunFailed(f"the server on port {port} does not answer ({error}); make serve-stop ends it") from None
    if not answer.ok and answer.status_code not in allowed:
        raise RunFailed(f"the server refused: {said.get('message', said)}")
    return said
