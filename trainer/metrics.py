"""The live training figures, in prometheus-client's multiprocess files, from which the node's agent serves them.

Every series carries the rank. Gauges are `mostrecent`: should two processes of one rank have written, the later one's
value is shown. A rank's files carry its process id, and the agent removes them soon after that process has ended, so
that a dead rank's step and loss do not stay on the dashboards.
"""

import os

from trainer.events import Step


class NoMetrics:
    """Nobody listens: PROMETHEUS_MULTIPROC_DIR is not set."""

    def step(self, event: Step) -> None:
        """Nothing to do."""


class Metrics:
    """Writes to memory-mapped files; a step costs some microseconds."""

    def __init__(self, rank: int):
        from prometheus_client import CollectorRegistry, Counter, Gauge

        registry = CollectorRegistry()  # of this object, so that nothing else of the process is exported

        def gauge(name, what):
            how = {"registry": registry, "multiprocess_mode": "mostrecent"}
            return Gauge(f"syncbed_training_{name}", what, ["rank"], **how).labels(rank)

        def counter(name, what, *labels):
            return Counter(f"syncbed_training_{name}_total", what, ["rank", *labels], registry=registry)

        self._rank = rank
        self._step = gauge("step", "Optimizer steps done.")
        self._loss = gauge("loss", "Training loss of this rank's share of the last batch.")
        self._accuracy = gauge("accuracy", "Training accuracy of this rank's share of the last batch, 0 to 1.")
        self._samples = counter("samples", "Training samples processed.").labels(rank)
        self._phases = counter("phase_seconds", "Seconds of the steps, by phase.", "phase")
        self._sent = counter("sent_bytes", "Payload bytes of collectives sent.").labels(rank)
        self._received = counter("received_bytes", "Payload bytes of collectives received.").labels(rank)

    def step(self, event: Step) -> None:
        """Count one step."""
        self._step.set(event.step)
        self._loss.set(event.loss)
        self._accuracy.set(event.accuracy)
        self._samples.inc(event.samples)
        self._sent.inc(event.sent_bytes)
        self._received.inc(event.received_bytes)
        for phase, seconds in event.seconds.items():
            self._phases.labels(self._rank, phase).inc(seconds)


def metrics(rank: int) -> Metrics | NoMetrics:
    """The figures' writer, where somebody listens."""
    return Metrics(rank) if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else NoMetrics()
