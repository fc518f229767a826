"""The live training figures, in prometheus-client's multiprocess files, from which the node's agent serves them.

Every series but the run's own carries the rank. Gauges are `mostrecent`: should two processes of
one rank have written, the later one's value is shown. A rank's files carry its process id, and the
agent removes them soon after that process has ended, so that a dead rank's step and loss do not
stay on the dashboards. What each metric means: docs/reference/metrics.md.
"""

import os
from collections.abc import Callable
from functools import cache

from trainer.events import PHASES, Step
from trainer.spec import RunSpec
from trainer.wire.traffic import DIRECTIONS, Amounts

SECONDS = (*(digit * 10**power for power in (-3, -2, -1, 0, 1) for digit in (1, 2, 5)), 60)  # bounds of the histograms
UPDATES = (0, 1, 2, 4, 8, 16, 32, 64, 128)


class NoMetrics:
    """Nobody listens: PROMETHEUS_MULTIPROC_DIR is not set."""

    def run(self, run_id: str, spec: RunSpec) -> None:
        """Nothing to do."""

    def begin(self, step_bytes: Callable, steps_before: int, synchronisations_before: int) -> None:
        """Nothing to do."""

    def step(self, event: Step) -> None:
        """Nothing to do."""

    def synchronised(self, traffic: Amounts, synchronisations: int) -> None:
        """Nothing to do."""

    def evaluated(self, samples: int) -> None:
        """Nothing to do."""

    def deadline_missed(self) -> None:
        """Nothing to do."""


class Metrics:
    """Writes to memory-mapped files; a step costs some tens of microseconds.

    What is not known is absent: a rank that does not train, such as a parameter server, has no step
    and no loss.
    """

    def __init__(self, rank: int):
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        registry = CollectorRegistry()  # of this object, so that nothing else of the process is exported

        def gauge(name, what, *labels):
            how = {"registry": registry, "multiprocess_mode": "mostrecent"}
            return Gauge(f"syncbed_training_{name}", what, labels or ["rank"], **how)

        def counter(name, what, *labels):
            return Counter(f"syncbed_training_{name}_total", what, ["rank", *labels], registry=registry)

        def histogram(name, what, buckets, *labels):
            return Histogram(f"syncbed_training_{name}", what, ["rank", *labels], buckets=buckets, registry=registry)

        self._of_rank = cache(lambda family, *labels: family.labels(rank, *labels))  # looked up in each step
        self._info = gauge(
            "run_info", "Always 1; which run this is.", "run", "sync", "model", "data", "nodes", "precision"
        )
        self._start = gauge("start_time_seconds", "Unix time at which this rank's counters were 0.")
        self._step = gauge("step", "Optimizer steps done.")
        self._loss = gauge("loss", "Training loss of this rank's share of the last batch.")
        self._accuracy = gauge("accuracy", "Training accuracy of this rank's share of the last batch, 0 to 1.")
        self._expected = gauge("expected_bytes", "Payload bytes per step by the formula.", "rank", "direction")
        self._samples = counter("samples", "Training samples processed.")
        self._evaluated = counter("evaluated_samples", "Test samples scored.")
        self._bytes = counter("bytes", "Payload bytes of collectives.", "collective", "direction")
        self._synchronisations = counter("synchronisations", "How often the replicas were brought together.")
        self._misses = counter("deadline_misses", "Collectives and peers that missed DEADLINE.").labels(rank)
        self._phases = histogram("phase_seconds", "Time of a step's phase.", SECONDS, "phase")
        self._seconds = histogram("step_seconds", "Time of a whole step.", SECONDS)
        self._staleness = histogram("staleness", "Updates between a push and its pull.", UPDATES)
        self._known_synchronisations = 0

    def run(self, run_id: str, spec: RunSpec) -> None:
        """Say which run this is; by rank 0 alone. Nothing is said of one without an id."""
        if run_id:
            what = (spec.sync, spec.model, spec.data, spec.nodes, spec.precision)
            self._info.labels(run_id, *what).set(1)

    def begin(self, step_bytes: Callable, steps_before: int, synchronisations_before: int) -> None:
        """This rank is about to train; its counters begin at 0.

        `step_bytes()`: bytes sent and received in a step by the strategy's formula; it raises
        NotImplementedError where there is none. `..._before`: of the run that this one goes on
        with.
        """
        self._known_synchronisations = synchronisations_before
        self._of_rank(self._start).set_to_current_time()
        for family in (self._samples, self._evaluated, self._synchronisations, self._seconds):
            self._of_rank(family)
        for phase in PHASES:
            self._of_rank(self._phases, phase)
        self._of_rank(self._step).set(steps_before)
        try:
            expected = step_bytes()
        except NotImplementedError:
            return
        for direction, amount in zip(DIRECTIONS, expected, strict=True):
            self._of_rank(self._expected, direction).set(amount)

    def step(self, event: Step) -> None:
        """Count one step."""
        self._of_rank(self._step).set(event.step)
        self._of_rank(self._loss).set(event.loss)
        self._of_rank(self._accuracy).set(event.accuracy)
        self._of_rank(self._samples).inc(event.samples)
        self._of_rank(self._seconds).observe(event.step_seconds)
        for phase, seconds in event.seconds.items():
            self._of_rank(self._phases, phase).observe(seconds)
        if event.staleness is not None:
            self._of_rank(self._staleness).observe(event.staleness)

    def synchronised(self, traffic: Amounts, synchronisations: int) -> None:
        """Count bytes by (collective, direction) since the last call, and how often replicas were brought together in
        all.
        """
        for (collective, direction), amount in traffic.items():
            self._of_rank(self._bytes, collective, direction).inc(amount)
        self._of_rank(self._synchronisations).inc(synchronisations - self._known_synchronisations)
        self._known_synchronisations = synchronisations

    def evaluated(self, samples: int) -> None:
        """Count test samples that this rank has scored."""
        self._of_rank(self._evaluated).inc(samples)

    def deadline_missed(self) -> None:
        """A collective or a peer took longer than DEADLINE."""
        self._misses.inc()


def metrics(rank: int) -> Metrics | NoMetrics:
    """The figures' writer, where somebody listens."""
    return Metrics(rank) if os.environ.get("PROMETHEUS_MULTIPROC_DIR") else NoMetrics()
