"""The Open Inference Protocol, version 2: health, metadata, and inference on tensors as JSON.

Input `images`: UINT8 (n, channels, height, width), or the same pixels, 0 to 255, as FP32. Outputs:
`probabilities` and `logits`, FP32 (n, classes). Normalisation is the server's.
"""

import json
import math
import threading
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from serving.errors import bad
from serving.inference import finite, measured
from serving.intake import Intake
from serving.metrics import Metrics
from serving.models import Models, Version

OUTPUTS = {"probabilities": 1, "logits": 0}  # name: where a Predictor has it
_ALONE = threading.Lock()  # JSON takes several times its size in memory, and two at once are no faster
_REST = 10_000  # commas and brackets besides those of the images: in names, the id, parameters
_TYPES = {"UINT8": np.uint8, "FP32": np.float32}


def routes(models: Models, intake: Intake, metrics: Metrics) -> list[Route]:
    infer = partial(_infer, models, intake)

    async def inference(request: Request) -> JSONResponse:
        return await measured(metrics, models, request, infer)

    async def metadata(request: Request) -> JSONResponse:
        return JSONResponse(about(models, _find(models, request)))

    async def ready(request: Request) -> JSONResponse:
        model = _find(models, request)
        return _readiness(model.batcher.workers > 0, name=model.name)

    async def all_ready(request: Request) -> JSONResponse:
        return _readiness(all(model.batcher.workers for model in models.all()))

    routes = [
        Route("/v2", _server),
        Route("/v2/health/live", _live),
        Route("/v2/health/ready", all_ready),
    ]
    for base in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        routes += [
            Route(base, metadata),
            Route(f"{base}/ready", ready),
            Route(f"{base}/infer", inference, methods=["POST"]),
        ]
    return routes


def _readiness(there: bool, **more: str) -> JSONResponse:
    return JSONResponse(more | {"ready": there}, 200 if there else 503)


async def _live(request: Request) -> JSONResponse:
    return JSONResponse({"live": True})


async def _server(request: Request) -> JSONResponse:
    try:
        release = version("syncbed")
    except PackageNotFoundError:  # in the image the code is a folder, not a package
        release = "unreleased"
    return JSONResponse({"name": "syncbed", "version": release, "extensions": []})


def _find(models: Models, request: Request) -> Version:
    return models.find(request.path_params["name"], request.path_params.get("version"))


def about(models: Models, model: Version) -> dict:
    """A model's metadata."""
    classes = len(model.about.classes)
    return {
        "name": model.name,
        "versions": [one.version for one in models.versions(model.name)],
        "platform": "pytorch",
        "inputs": [{"name": "images", "datatype": "UINT8", "shape": [-1, *model.about.shape]}],
        "outputs": [{"name": name, "datatype": "FP32", "shape": [-1, classes]} for name in OUTPUTS],
    }


async def _infer(models: Models, intake: Intake, request: Request) -> JSONResponse:
    model = _find(models, request)
    model.batcher.refuse_if_full()
    shape = model.about.image_shape
    async with intake.body(request) as body:
        identity, output_names, images = await intake.convert(read, body, shape, model.batcher.most)
    predictions = finite(await model.batcher(images))
    outputs = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": [len(predictions), predictions.shape[2]],
            "data": predictions[:, OUTPUTS[name]].ravel().tolist(),
        }
        for name in output_names
    ]
    answer = {"model_name": model.name, "model_version": model.version, "outputs": outputs}
    if identity:
        answer["id"] = identity
    return JSONResponse(answer)


def read(body: bytes, shape: tuple[int, ...], most: int) -> tuple[str, list[str], np.ndarray]:
    """(id, names of outputs, images) of a request for inference. Raises Refused (400)."""
    _refuse_endless(body, shape, most)
    try:
        with _ALONE:
            request = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise bad("the body is no JSON") from None
    identity = request.get("id", "") if isinstance(request, dict) else None
    if not isinstance(identity, str):
        raise bad("the body is no request of the Open Inference Protocol: an object with inputs")
    try:
        identity.encode()
    except UnicodeEncodeError:
        raise bad("id: half a surrogate pair is no text") from None
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise bad("inputs: a list of one tensor, named images")
    return identity, _output_names(request.get("outputs")), _tensor(inputs[0], shape, most)


def _refuse_constant(name: str) -> float:
    """NaN, Infinity and -Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is no number of JSON")


def _output_names(outputs: object) -> list[str]:
    """The outputs that a request names, each once; all where it names none.

    Raises Refused (400).
    """
    if not outputs:
        return list(OUTPUTS)
    names = [one.get("name") for one in outputs if isinstance(one, dict)] if isinstance(outputs, list) else []
    known_names = [name for name in names if isinstance(name, str) and name in OUTPUTS]
    if not isinstance(outputs, list) or len(known_names) < len(outputs):
        raise bad(f"outputs: a list of {', '.join(OUTPUTS)}")
    return list(dict.fromkeys(known_names))


def _refuse_endless(body: bytes, shape: tuple[int, ...], most: int) -> None:
    """Raises Refused (400) for more values, lists and objects than `most` images have and _REST besides.

    Counting takes milliseconds. Each list or object that is read takes the garbage collector along,
    and numpy: 10 MiB of them would be seconds of a core.
    """
    rows = [most * math.prod(shape[:axis]) for axis in range(len(shape) + 1)]
    values, lists = rows[-1], 1 + sum(rows[:-1])
    if body.count(b",") > values + _REST or body.count(b"[") + body.count(b"{") > lists + _REST:
        raise bad(f"the body holds more than a request for {most} images takes")


def _tensor(tensor: dict, shape: tuple[int, ...], most: int) -> np.ndarray:
    name, kind, size = tensor.get("name"), tensor.get("datatype"), tensor.get("shape")
    if name != "images" or not isinstance(kind, str) or kind not in _TYPES:
        raise bad("inputs: one tensor named images, of datatype UINT8 or FP32")
    if (
        not isinstance(size, list)
        or any(type(n) is not int for n in size)
        or tuple(size[1:]) != shape
        or len(size) != 4
    ):
        raise bad(f"shape: [n, {', '.join(map(str, shape))}]")
    if not 1 <= size[0] <= most:
        raise bad(f"shape: 1 to {most} images in one request")
    try:
        values = np.array(tensor.get("data"))
    except (ValueError, OverflowError, RecursionError):
        raise bad("data: a list of numbers, flat or nested as shape says") from None
    if (
        values.dtype.kind not in "iuf"
        or values.size != np.prod(size)
        or values.shape not in ((values.size,), tuple(size))
    ):
        raise bad("data: a list of numbers, flat or nested as shape says")
    if (kind == "UINT8" and values.dtype.kind == "f") or values.min() < 0 or values.max() > 255:
        raise bad(f"data: {'whole ' if kind == 'UINT8' else ''}numbers from 0 to 255, as pixels are")
    return values.reshape(size).astype(_TYPES[kind])
