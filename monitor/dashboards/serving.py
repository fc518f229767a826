"""The Serving dashboard: how many requests, how they are answered, how fast, and in what batches."""

from functools import partial

from monitor.dashboards import parts
from monitor.dashboards.parts import RATE, THIRD, dashboard, row, stretches, variable

UID = "syncbed-serving"
_NOTHING = "nothing is served, or nobody asks"
_MODEL = 'model=~"$model"'
_EACH = "{{model}}"
series = partial(parts.series, empty=_NOTHING, min=0)


def build() -> dict:
    """The dashboard's JSON model."""
    models = variable("model", "Model", "syncbed_serving_model_info", 1, "nothing is served")
    return dashboard(
        UID,
        "Serving",
        "The models that are served: requests, errors, how long answers take, and how requests are batched.",
        [row("Requests"), *_requests(), row("Batches"), *_batches()],
        variables=[models],
        annotation=_served(),
    )


def _served() -> dict:
    """Every chosen model as a coloured stretch of time: while it is served, and the run that it is of."""
    query = f"syncbed_serving_model_info{{{_MODEL}}}"
    return stretches("Models", query, "{{model}}, version {{version}}", "of run {{run}}", "model")


def _rate(metric: str, by: str = "model") -> str:
    return f"sum by ({by}) (rate({metric}{{{_MODEL}}}{RATE}))"


def _quantile(metric: str, share: float) -> str:
    return f"histogram_quantile({share}, {_rate(metric + '_bucket', 'le, model')})"


def _mean(metric: str) -> str:
    return f"{_rate(metric + '_sum')} / ({_rate(metric + '_count')} > 0)"


def _requests() -> list[dict]:
    answer = "syncbed_serving_request_seconds"
    errors = 'syncbed_serving_errors_total{model=~"$model|none"}'
    return [
        series(
            "Requests", "Answers per second of each model.", "reqps", {_EACH: _rate("syncbed_serving_requests_total")}
        ),
        series(
            "Errors",
            "Answers per second with a code from 400 on. 503: the queue was full. Model none: not served.",
            "reqps",
            {"{{model}} {{code}}": f"sum by (model, code) (rate({errors}{RATE}))"},
        ),
        series(
            "Time to answer",
            "From a request's head to its answer: half, and 99 of 100, take no longer.",
            "s",
            {f"{_EACH} p50": _quantile(answer, 0.5), f"{_EACH} p99": _quantile(answer, 0.99)},
        ),
        series(
            "Waiting",
            "Requests of each model that wait for a batch. What finds the queue full is refused.",
            "none",
            {_EACH: f"sum by (model) (syncbed_serving_queue_requests{{{_MODEL}}})"},
            decimals=0,
        ),
    ]


def _batches() -> list[dict]:
    return [
        series(
            "Batch size", "Images of a batch, mean.", "none", {_EACH: _mean("syncbed_serving_batch_size")}, width=THIRD
        ),
        series(
            "Seconds of a batch",
            "Of the forward pass, mean.",
            "s",
            {_EACH: _mean("syncbed_serving_inference_seconds")},
            width=THIRD,
        ),
        series(
            "Memory",
            "Resident memory of the server.",
            "decbytes",
            {"server": "max(syncbed_serving_process_resident_memory_bytes)"},
            width=THIRD,
        ),
    ]
