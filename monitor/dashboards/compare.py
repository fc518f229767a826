"""The Compare dashboard: several runs over each other, aligned at step 0, and each run in a few numbers.

Time cannot be shifted by an amount that differs between series, so the step is made a label of the figure it belongs
to (`count_values`), at each moment of the dashboard's time. What comes back is a table of run, step and value, which
Grafana turns into a column for each run and a row for each step. Rank 0's figures are taken: its node says which run it
is of in the same scrape. Where two runs are told in one scrape (an ended rank's figures stay for seconds), the younger
one is meant.
"""

from monitor.dashboards.parts import HEIGHT, RUN_INFO, THIRD, dashboard, panel, row, run_variable

_POINTS = 3600  # looked at, at most: each second of an hour, a tenth of them in ten
_EACH = "[$__range:$__interval]"
_CHOSEN = RUN_INFO + '{run=~"$run"}'
_STEP = "step\\run"  # Grafana's name for the column of rows: "<row field>\<column field>"
_STYLE = {
    "drawStyle": "line",
    "lineWidth": 1,
    "fillOpacity": 0,
    "showPoints": "auto",
    "pointSize": 3,
    "spanNulls": True,
}


def build() -> dict:
    """The dashboard's JSON model."""
    return dashboard(
        "syncbed-compare",
        "Compare",
        "Runs side by side: choose them above, and a time range that holds them.",
        [
            row("By step"),
            _by_step("Loss by step", "Training loss of rank 0's share of the batch.", "syncbed_training_loss", "none"),
            _by_step(
                "Accuracy by step", "Training accuracy of rank 0's batch.", "syncbed_training_accuracy", "percentunit"
            ),
            _elapsed(),
            _by_step(
                "Step time by step",
                "Seconds of rank 0's step, mean of the minute before.",
                "rank:syncbed_training_step_seconds:mean1m",
                "s",
            ),
            row("The whole run"),
            *_whole(),
        ],
        since="now-1h",
        refresh="1m",  # its queries look at each moment of the range
        variables=[run_variable()],  # the figures are rank 0's, whose node is always the first
    )


def run_of(value: str) -> str:
    """A figure of trainer-0's rank 0 with the label `run`: of the youngest run that its node tells of."""
    youngest = f"bottomk by (node) (1, count_over_time({RUN_INFO}[30s]) and {RUN_INFO})"
    return f"({value}) * on (node) group_left (run) (({youngest} > bool 0) and on (run, node) {_CHOSEN})"


def _aligned(value: str) -> str:
    """Run, step and value at every moment of the time range, once for each step that was seen."""
    steps = f'count_values by (run) ("step", {run_of(_rank0("syncbed_training_step"))} > 0)'
    return f"last_over_time((sum by (run) ({run_of(value)}) * on (run) group_right () {steps}){_EACH})"


def _rank0(metric: str) -> str:
    return f'max by (node) ({metric}{{rank="0"}})'


def _by_step(title: str, description: str, metric: str, unit: str) -> dict:
    return _trend(title, description, unit, _aligned(_rank0(metric)))


def _elapsed() -> dict:
    """Where lines are apart, the steeper one is the slower run."""
    seconds = 'max by (node) (syncbed_training_step_seconds_sum{rank="0"})'
    return _trend(
        "Seconds by step",
        "Seconds that rank 0 has spent in steps so far; the steeper, the slower.",
        "s",
        _aligned(seconds),
    )


def _trend(title: str, description: str, unit: str, query: str) -> dict:
    chart = panel("trend", title, description, unit, {"{{run}}": query}, form="table", instant=True, height=HEIGHT + 2)
    chart["fieldConfig"]["defaults"] |= {"custom": _STYLE}
    chart["maxDataPoints"] = _POINTS
    matrix = {"columnField": "run", "rowField": "step", "valueField": "Value", "emptyValue": "null"}
    chart["transformations"] = [
        {"id": "groupingToMatrix", "options": matrix},
        {"id": "convertFieldType", "options": {"conversions": [{"targetField": _STEP, "destinationType": "number"}]}},
        {"id": "sortBy", "options": {"sort": [{"field": _STEP, "desc": False}]}},
    ]
    chart["options"] = {
        "xField": _STEP,
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "min"]},
        "tooltip": {"mode": "multi", "sort": "none"},
    }
    return chart


def _bars(title: str, description: str, unit: str, value: str, over: str = "last", empty: str = "") -> dict:
    query = f"{over}_over_time((max by (run) ({run_of(value)})){_EACH})"
    chart = panel("bargauge", title, description, unit, {"{{run}}": query}, instant=True, width=THIRD, empty=empty)
    chart["maxDataPoints"] = _POINTS
    chart["fieldConfig"]["defaults"] |= {"min": 0, "color": {"mode": "palette-classic"}}
    chart["options"] = {
        "orientation": "horizontal",
        "displayMode": "basic",
        "showUnfilled": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return chart


def _whole() -> list[dict]:
    def of_rank0(total: str, selector: str, per: str) -> str:
        """Since the run began, up to its last scrape: the mean over the run, exactly."""
        totals = f'sum by (node) (syncbed_training_{total}{{rank="0", {selector}}})'
        return f'{totals} / on (node) (max by (node) (syncbed_training_step_seconds_{per}{{rank="0"}}) > 0)'

    return [
        _bars(
            "Samples per second",
            "Of all ranks together, mean over the run.",
            "none",
            f"{_rank0('syncbed_training_step')} * 0 + on () group_left () cluster:syncbed_training_samples:rate1m",
            over="avg",  # of the moments: ranks end one after the other, and the last moment has not all of them
        ),
        _bars(
            "Exposed sync",
            "Share of rank 0's steps that waits for synchronisation, mean over the run.",
            "percentunit",
            of_rank0("phase_seconds_sum", 'phase="sync"', "sum"),
        ),
        _bars(
            "Bytes sent per step",
            "By rank 0, mean over the run.",
            "decbytes",
            of_rank0("bytes_total", 'direction="sent"', "count"),
            empty="one rank alone",
        ),
    ]
