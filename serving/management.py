"""TorchServe's management interface: register, describe, scale, unregister; which version is the default."""

from functools import partial

import psutil
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from serving.errors import Refused, bad
from serving.models import MOST_BATCH, MOST_DELAY_MS, MOST_WORKERS, Models, Version

BATCH, DELAY_MS = 32, 5  # where registration does not say
_PROCESSING = {"status": "Processing worker updates..."}


def routes(models: Models) -> list[Route]:
    def of(handler):
        return partial(handler, models)

    return [
        Route("/models", of(_list), methods=["GET"]),
        Route("/models", of(_register), methods=["POST"]),
        Route("/models/{name}", of(_describe), methods=["GET"]),
        Route("/models/{name}/{version}", of(_describe), methods=["GET"]),
        Route("/models/{name}", of(_scale), methods=["PUT"]),
        Route("/models/{name}/{version}", of(_scale), methods=["PUT"]),
        Route("/models/{name}", of(_unregister), methods=["DELETE"]),
        Route("/models/{name}/{version}", of(_unregister), methods=["DELETE"]),
        Route("/models/{name}/{version}/set-default", of(_set_default), methods=["PUT"]),
    ]


def _whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise bad(f"{name}={text[:20]}: a whole number from {low} to {high}")
    return int(text)


def _waits(request: Request) -> bool:
    """Whether the answer is wanted when all is done: that is when all are given, so that only their words differ."""
    return request.query_params.get("synchronous", "false").lower() == "true"


async def _list(models: Models, request: Request) -> JSONResponse:
    """A page of the models' names; nextPageToken where there are more."""
    limit = _whole(request, "limit", 100, 1, 1000)
    start = _whole(request, "next_page_token", 0, 0, 10**8)
    names = models.names()
    page = [{"modelName": name, "modelUrl": models.find(name).url} for name in names[start : start + limit]]
    more = {"nextPageToken": str(start + limit)} if start + limit < len(names) else {}
    return JSONResponse(more | {"models": page})


async def _register(models: Models, request: Request) -> JSONResponse:
    url = request.query_params.get("url", "")
    if not url:
        raise bad("url: which model of the store?")
    workers = _whole(request, "initial_workers", 0, 0, MOST_WORKERS)
    version = await models.register(
        url,
        request.query_params.get("model_name", url),
        workers=workers,
        most=_whole(request, "batch_size", BATCH, 1, MOST_BATCH),
        delay_ms=_whole(request, "max_batch_delay", DELAY_MS, 0, MOST_DELAY_MS),
    )
    if workers and not _waits(request):
        return JSONResponse(_PROCESSING, 202)
    status = f'Model "{version.name}" Version: {version.version} registered with {workers} initial workers'
    if not workers:
        status += ". Use scale workers API to add workers for the model."
    return JSONResponse({"status": status})


async def _describe(models: Models, request: Request) -> JSONResponse:
    """A list, as TorchServe has it: of the default version, the named one, or all."""
    name, version = request.path_params["name"], request.path_params.get("version")
    versions = models.versions(name) if version == "all" else [models.find(name, version)]
    return JSONResponse([_about(one) for one in versions])


def _about(one: Version) -> dict:
    memory = psutil.Process().memory_info().rss  # of the server: workers share it
    workers = [
        {"id": str(9000 + number), "startTime": one.started, "status": "READY", "gpu": False, "memoryUsage": memory}
        for number in range(one.batcher.workers)
    ]
    return {
        "modelName": one.name,
        "modelVersion": one.version,
        "modelUrl": one.url,
        "engine": "Torch",
        "runtime": "python",
        "minWorkers": one.batcher.workers,
        "maxWorkers": one.batcher.workers,
        "batchSize": one.batcher.most,
        "maxBatchDelay": round(one.batcher.delay_seconds * 1000),
        "workers": workers,
        "jobQueueStatus": {
            "remainingCapacity": one.batcher.capacity - len(one.batcher),
            "pendingRequests": len(one.batcher),
        },
        "customizedMetadata": {
            "model": one.about.model,
            "data": one.about.data,
            "run": one.about.run,
            "step": one.about.step,
            "metrics": one.about.metrics,
        },
    }


async def _scale(models: Models, request: Request) -> JSONResponse:
    """Workers are threads over one copy of the weights: they are there at once."""
    name, version = request.path_params["name"], request.path_params.get("version")
    least = _whole(request, "min_worker", 1, 0, MOST_WORKERS)
    if _whole(request, "max_worker", max(least, 1), 0, MOST_WORKERS) < least:
        raise bad("max_worker: at least min_worker")
    models.scale(name, version, least)
    if not _waits(request):
        return JSONResponse(_PROCESSING, 202)
    of = f", version: {version}" if version else ""
    return JSONResponse({"status": f"Workers scaled to {least} for model: {name}{of}"})


async def _unregister(models: Models, request: Request) -> JSONResponse:
    name = request.path_params["name"]
    await models.unregister(name, request.path_params.get("version"))
    return JSONResponse({"status": f'Model "{name}" unregistered'})


async def _set_default(models: Models, request: Request) -> JSONResponse:
    name, version = request.path_params["name"], request.path_params["version"]
    try:
        models.set_default(name, version)
    except Refused as refused:
        raise Refused(404, "ModelVersionNotFoundException", refused.message) from None
    return JSONResponse({"status": f'Default version successfully updated for model "{name}" to "{version}"'})
