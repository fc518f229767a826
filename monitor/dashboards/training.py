"""The Training dashboard: how far the run is, what a step is spent on, and what its strategy sends."""

from monitor.dashboards.parts import NODE, OF_RUN, RATE, THIRD, dashboard, panel, row, series

UID = "syncbed-training"
_PHASES = ("data", "forward", "backward", "sync", "optimizer")  # in the order of a step, as they are stacked
_RANK = "rank {{rank}}"
_ONE_RANK = "one rank alone"


def build() -> dict:
    """The dashboard's JSON model."""
    return dashboard(
        UID,
        "Training",
        "The run that is on: loss, accuracy, speed, where a step's time goes, and the bytes it sends.",
        [
            row("Progress"),
            *_progress(),
            row("Step"),
            *_step(),
            row("Synchronisation"),
            *_traffic(),
            *_synchronisations(),
        ],
    )


def _of_rank(metric: str, selector: str = "", by: str = "rank") -> str:
    """A figure of each rank of the chosen run and nodes; one value a rank, whatever node it is on."""
    where = ", ".join(filter(None, (NODE, selector)))
    return f"max by ({by}) ({metric}{{{where}}}) {OF_RUN}"


def _progress() -> list[dict]:
    return [
        series(
            "Loss",
            "Training loss of each rank's share of the last batch, before the update.",
            "none",
            {_RANK: _of_rank("syncbed_training_loss")},
            decimals=3,
        ),
        series(
            "Accuracy",
            "Share of each rank's last batch that was classified correctly, before the update.",
            "percentunit",
            {_RANK: _of_rank("syncbed_training_accuracy")},
            min=0,
            max=1,
        ),
        series(
            "Step",
            "Optimizer steps that each rank has taken.",
            "none",
            {_RANK: _of_rank("syncbed_training_step")},
            min=0,
            decimals=0,
        ),
        series(
            "Samples per second",
            "Training samples per second of the steps, all ranks and each; evaluations between steps do not count.",
            "none",
            {
                "all ranks": f"cluster:syncbed_training_samples:rate1m {OF_RUN}",
                _RANK: _of_rank("rank:syncbed_training_samples:rate1m"),
            },
            min=0,
            decimals=1,
        ),
    ]


def _step() -> list[dict]:
    def phase(name: str) -> str:
        return f'avg(rank:syncbed_training_phase_seconds:mean1m{{{NODE}, phase="{name}"}}) {OF_RUN}'

    return [
        series(
            "Step phases",
            "Seconds of a step by phase, mean over the ranks and the last minute. Sync is what backward did not hide.",
            "s",
            {name: phase(name) for name in _PHASES},
            stacked=True,
            min=0,
        ),
        series(
            "Exposed sync",
            "Share of a step that each rank waits for synchronisation, which backward did not hide.",
            "percentunit",
            {_RANK: _of_rank("rank:syncbed_training_exposed_sync:ratio1m")},
            min=0,
            max=1,
        ),
        series(
            "Step time",
            "Seconds of a step, mean of the last minute.",
            "s",
            {_RANK: _of_rank("rank:syncbed_training_step_seconds:mean1m")},
            min=0,
            width=THIRD,
        ),
        _distribution(),
        series(
            "Stragglers",
            "Seconds that each rank computes in a step, over the median of a slow rank's peers: of two, the faster.",
            "none",
            {_RANK: _of_rank("rank:syncbed_training_straggler:ratio1m")},
            min=0,
            decimals=2,
            width=THIRD,
        ),
    ]


def _distribution() -> dict:
    heatmap = panel(
        "heatmap",
        "Step time, distribution",
        "How many steps, of all ranks, took how long.",
        "none",
        {"{{le}}": f"sum by (le) (increase(syncbed_training_step_seconds_bucket{{{NODE}}}{RATE})) {OF_RUN}"},
        form="heatmap",
        width=THIRD,
    )
    heatmap["options"] = {
        "calculate": False,
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 32},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": True},
    }
    return heatmap


def _traffic() -> list[dict]:
    def per_step(title: str, direction: str, description: str) -> dict:
        selector = f'direction="{direction}"'
        return series(
            title,
            description,
            "decbytes",
            {
                _RANK: _of_rank("rank:syncbed_training_bytes_per_step:mean1m", selector),
                _RANK + " formula": _of_rank("syncbed_training_expected_bytes", selector),
            },
            empty=f"{_ONE_RANK}, or no formula",
            min=0,
        )

    return [
        per_step(
            "Bytes sent per step", "sent", "Payload that each rank hands to collectives in a step, against the formula."
        ),
        per_step("Bytes received per step", "received", "Payload that each rank gets from them, against the formula."),
        series(
            "Traffic by collective",
            "Payload per second of all ranks, by collective and direction.",
            "Bps",
            {
                "{{collective}} {{direction}}": "sum by (collective, direction) "
                f"(rate(syncbed_training_bytes_total{{{NODE}}}{RATE})) {OF_RUN}"
            },
            empty=_ONE_RANK,
            min=0,
        ),
    ]


def _synchronisations() -> list[dict]:
    return [
        series(
            "Synchronisations",
            "How often each rank's replica was brought together with the others in this run.",
            "none",
            {_RANK: _of_rank("syncbed_training_synchronisations_total")},
            min=0,
            decimals=0,
        ),
        series(
            "Staleness",
            "Updates that the servers made between a worker's pull and its push, mean of the run so far.",
            "none",
            {
                _RANK: f"sum by (rank) (syncbed_training_staleness_sum{{{NODE}}})"
                f" / (sum by (rank) (syncbed_training_staleness_count{{{NODE}}}) > 0) {OF_RUN}"
            },
            empty="no parameter servers",
            min=0,
            decimals=2,
        ),
        series(
            "Deadline misses",
            "Collectives and peers that took longer than DEADLINE in this run.",
            "none",
            {_RANK: _of_rank("syncbed_training_deadline_misses_total")},
            min=0,
            decimals=0,
        ),
    ]
