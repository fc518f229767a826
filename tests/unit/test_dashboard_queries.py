"""Queries of dashboards on known figures: promtool evaluates them over two runs whose every value is known.

Run a takes steps of 1 s and has a loss of 8, run b of half a second and 4. Run b starts while the last figures of a are
still told, as it can be within five seconds of a's end.
"""

import json

import pytest
from promql import RULES, promtool

from monitor.dashboards.check import Window, queries

RUN_A, RUN_B = "20260101-000000-a", "20260101-000100-b"
NODE = 'node="trainer-0"'
RANK = NODE + ', rank="0"'
END = 60
SERIES = {
    # a is there from second 0 to 29, b from 27 on; steps and loss are b's from 27 on, as the later process wrote them
    f'syncbed_training_run_info{{{NODE}, run="{RUN_A}", sync="ddp"}}': "1x29 stale",
    f'syncbed_training_run_info{{{NODE}, run="{RUN_B}", sync="ring"}}': "_x27 1x60",
    f"syncbed_training_step{{{RANK}}}": "0+1x26 0+2x60",
    f"syncbed_training_loss{{{RANK}}}": "_ 8x25 4x60",
    f"syncbed_training_step_seconds_count{{{RANK}}}": "0+1x26 0+2x60",
    f"syncbed_training_step_seconds_sum{{{RANK}}}": "0+1x26 0+1x60",
}
# The expectations: by run, step to value.
STEPS_A, STEPS_B = range(1, 27), range(2, 2 * (END - 27) + 1, 2)
EXPECTED = {
    "Loss by step": {RUN_A: dict.fromkeys(STEPS_A, 8), RUN_B: dict.fromkeys(STEPS_B, 4)},
    "Seconds by step": {RUN_A: {n: n for n in STEPS_A}, RUN_B: {n: n / 2 for n in STEPS_B}},
}


def evaluated(tmp_path, panel: str, run: str) -> str:
    """What promtool says of the panel's query against the expectation; empty when they agree."""
    (query,) = [query for query in queries() if query.panel == panel]
    window = Window(run, 0, END)
    expression = window.fill(query.expression)
    samples = [
        {"labels": f'{{run="{name}", step="{step}"}}', "value": value}
        for name, values in EXPECTED[panel].items()
        if name.startswith(run.replace(".*", ""))
        for step, value in values.items()
    ]
    case = {"expr": expression, "eval_time": f"{END}s", "exp_samples": samples}
    test = {
        "interval": "1s",
        "input_series": [{"series": name, "values": values} for name, values in SERIES.items()],
        "promql_expr_test": [case],
    }
    rules = [str(RULES / "recording.yml")]
    file = tmp_path / "test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": "1s", "tests": [test]}))
    done = promtool("test", "rules", str(file))
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("run", [RUN_A, RUN_B])
@pytest.mark.parametrize("panel", EXPECTED)
def test_runs_are_aligned_at_step_0(tmp_path, panel, run):
    assert evaluated(tmp_path, panel, run) == ""
