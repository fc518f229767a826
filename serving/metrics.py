"""What the server counts, in Prometheus' format. docs/reference/metrics.md has every name."""

from time import perf_counter

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

disable_created_metrics()  # they double the series of counters and say nothing that is asked for

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
NO_MODEL = "none"  # label of requests for models that are not here: names are the clients' own, and endless


class Metrics:
    """The figures of one server."""

    def __init__(self):
        self.registry = CollectorRegistry()

        def make(kind, name, what, labels, **more):
            return kind(f"syncbed_serving_{name}", what, labels, registry=self.registry, **more)

        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self._requests = make(Counter, "requests", "Requests for predictions that were answered.", ("model", "code"))
        self._errors = make(Counter, "errors", "Those of them with a code from 400 on.", ("model", "code"))
        self._seconds = make(Histogram, "request_seconds", "From head to answer.", ("model",), buckets=_SECONDS)
        self._batch = make(Histogram, "batch_size", "Images of a batch.", ("model",), buckets=sizes)
        self._inference = make(
            Histogram, "inference_seconds", "Of a batch's forward pass.", ("model",), buckets=_SECONDS
        )
        self._info = make(Gauge, "model_info", "Always 1.", ("model", "version", "run", "default"))
        self._queue = make(Gauge, "queue_requests", "Requests that wait for a batch.", ("model",))
        ProcessCollector("syncbed_serving", registry=self.registry)

    def answered(self, model: str, code: int, began: float) -> None:
        """A request whose head came at `began` (perf_counter) was answered."""
        self._requests.labels(model, str(code)).inc()
        if code >= 400:
            self._errors.labels(model, str(code)).inc()
        self._seconds.labels(model).observe(perf_counter() - began)

    def computed(self, model: str, images: int, seconds: float) -> None:
        """A batch was computed."""
        self._batch.labels(model).observe(images)
        self._inference.labels(model).observe(seconds)

    def serves(self, versions: list) -> None:
        """Which models are served, and how many requests wait for each, as of now."""
        self._info.clear()
        self._queue.clear()
        for one in versions:
            self._info.labels(one.name, one.version, one.about.run, str(one.default).lower()).set(1)
            self._queue.labels(one.name).inc(len(one.batcher))
