"""The management interface of a server of models, as a client: register, list, unregister."""

import re
from collections.abc import Collection
from typing import Any, TypedDict

import requests

from monitor.errors import RunFailed, UserError
from monitor.serve.local_host import ask

_TIMEOUT_SECONDS = 60


class Batching(TypedDict):
    """How requests are joined, in the words of the interface."""

    batch_size: int  # images at most
    max_batch_delay: int  # milliseconds


def register(port: int, url: str, name: str, batching: Batching, must_match: bool, words: str) -> str:
    """Have the artefact served under the name, as its default version. Returns the version.

    `must_match`: an artefact that is served already must be batched like this, else UserError is raised.
    `words`: what names the place behind `make serve-stop`.
    """
    versions = manage(port, "GET", f"/models/{name}/all", allowed=(404,))
    if not isinstance(versions, list):  # the name is new: 404
        versions = []
    present = next((version for version in versions if version["modelUrl"] == url), None)
    if present is None:
        model = {"url": url, "model_name": name, "initial_workers": 1, "synchronous": "true"}
        status = manage(port, "POST", "/models", model | batching)["status"]
        version = re.search(r"Version: (\S+)", status)
        if version is None:
            raise RunFailed(f"the server named no version: {status}")
        return version[1]
    same = (present["batchSize"], present["maxBatchDelay"]) == (batching["batch_size"], batching["max_batch_delay"])
    if must_match and not same:
        raise UserError(
            f"NAME={name}: served already, batched in another way; make serve-stop NAME={name}{words} first"
        )
    manage(port, "PUT", f"/models/{name}/{present['modelVersion']}/set-default")
    return present["modelVersion"]


def names(port: int) -> list[str]:
    """The models that are served."""
    return [model["modelName"] for model in manage(port, "GET", "/models", {"limit": 1000})["models"]]


def served(port: int) -> set[str]:
    """The artefacts that are in use."""
    return {version["modelUrl"] for name in names(port) for version in manage(port, "GET", f"/models/{name}/all")}


def manage(port: int, method: str, path: str, parameters: dict | None = None, allowed: Collection[int] = ()) -> Any:
    """Ask the server whose predictions are on `port`. Returns its answer, from JSON.

    `allowed`: statuses that are no errors. Raises RunFailed with the server's own line.
    """
    try:
        response = ask(port + 1, method, path, params=parameters, timeout=_TIMEOUT_SECONDS)
        answer = response.json()
    except (requests.RequestException, ValueError) as error:
        raise RunFailed(f"the server on port {port} does not answer ({error}); make serve-stop ends it") from None
    if not response.ok and response.status_code not in allowed:
        raise RunFailed(f"the server refused: {answer.get('message', answer)}")
    return answer
