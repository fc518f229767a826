"""TorchServe's inference interface: GET /ping, and PUT or POST /predictions/<name>[/<version>] with an image."""

import asyncio
from functools import partial
from time import perf_counter

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from serving.errors import LEFT, Refused
from serving.images import decode, is_small
from serving.intake import Intake, file_in
from serving.layer import GONE
from serving.metrics import NO_MODEL, Metrics
from serving.models import Models

MOST_LIKELY = 5


def routes(models: Models, intake: Intake, metrics: Metrics) -> list[Route]:
    predict = partial(_predict, models, intake)

    async def predictions(request: Request) -> JSONResponse:
        return await measured(metrics, models, request, predict)

    return [
        Route("/ping", _ping),
        Route("/predictions/{name}", predictions, methods=["PUT", "POST"]),
        Route("/predictions/{name}/{version}", predictions, methods=["PUT", "POST"]),
    ]


async def measured(metrics: Metrics, models: Models, request: Request, handler) -> JSONResponse:
    """Have `handler` answer, and count it under its model's name."""
    began, code = perf_counter(), 500
    name = request.path_params["name"]
    model = name if name in models.names() else NO_MODEL
    try:
        answer = await handler(request)
        code = answer.status_code
        return answer
    except Refused as refused:
        code = refused.status
        raise
    except asyncio.CancelledError:
        code = LEFT if GONE in request.scope else 503
        raise
    finally:
        metrics.answered(model, code, began)


def finite(predictions: np.ndarray) -> np.ndarray:
    """The predictions as they are, for JSON has no other numbers.

    Raises Refused (500): it is not the pixels.
    """
    if not np.isfinite(predictions).all():
        raise Refused(500, "InternalServerException", "the model's answer is not finite: its training diverged")
    return predictions


async def _ping(request: Request) -> JSONResponse:
    return JSONResponse({"status": "Healthy"})


async def _predict(models: Models, intake: Intake, request: Request) -> JSONResponse:
    model = models.find(request.path_params["name"], request.path_params.get("version"))
    model.batcher.refuse_if_full()
    async with intake.body(request) as body:
        content = await file_in(request, body)
        shape = model.about.image_shape
        if is_small(content):
            pixels = decode(content, shape)
        else:
            pixels = await intake.convert(decode, content, shape)
    probabilities = finite(await model.batcher(pixels[None]))[0, 1]
    likely = probabilities.argsort()[::-1][:MOST_LIKELY]
    return JSONResponse({model.about.classes[i]: float(probabilities[i]) for i in likely})
