"""Queries of dashboards on known figures: promtool evaluates them over two runs whose every value is known.

Run a takes steps of 1 s and has a loss of 8, run b of half a second and 4. Run b starts while the last figures of a are
still told, as it can be within five seconds of a's end.
"""

import json

from promql import RULES, promtool

from monitor.dashboards.check import Window, queries

A, B = "20260101-000000-a", "20260101-000100-b"
ZERO = {"node": "trainer-0", "rank": "0"}
ONE = {"node": "trainer-1", "rank": "1"}
END = 60


def name(metric: str, *labels: dict, **more: str) -> str:
    """A series or its labels as Prometheus writes them."""
    pairs = {key: value for group in (*labels, more) for key, value in group.items()}
    inside = ", ".join(f'{key}="{value}"' for key, value in pairs.items())
    return f"{metric}{{{inside}}}"


# a is there from second 0 to 29, b from 27 on; steps and losses are b's from 27 on, as the later process wrote them.
SERIES = {
    name("syncbed_training_run_info", node="trainer-0", run=A, sync="ddp"): "1x29 stale",
    name("syncbed_training_run_info", node="trainer-0", run=B, sync="ring"): "_x27 1x60",
    **{
        name(f"syncbed_training_{metric}", rank): values
        for rank in (ZERO, ONE)
        for metric, values in {
            "step": "0+1x26 0+2x60",
            "loss": "_ 8x25 4x60",
            "accuracy": "_ 0.5x25 0.75x60",
            "step_seconds_count": "0+1x26 0+2x60",
            "step_seconds_sum": "0+1x26 0+1x60",
        }.items()
    },
    # one scrape sees two of b's steps before their bytes
    name("syncbed_training_bytes_total", ZERO, collective="all_reduce", direction="sent"): "_ 64+64x25 0 0 512+256x58",
    name("syncbed_training_phase_seconds_sum", ZERO, phase="sync"): "0+0.5x26 0 0 0.5+0.25x58",
    name("syncbed_training_expected_bytes", ZERO, direction="sent"): "64x26 128x60",
    name("syncbed_training_staleness_sum", ONE): "0+6x90",
    name("syncbed_training_staleness_count", ONE): "0+2x90",
    name("syncbed_training_staleness_count", ZERO): "0x90",
    name("syncbed_node_cpu_seconds_total", node="trainer-1", mode="user"): "7+0.25x90",
    name("syncbed_node_cpu_seconds_total", node="trainer-1", mode="system"): "0+0.125x90",
    name("syncbed_node_cpu_limit_cores", node="trainer-1"): "0.5x90",
    name("syncbed_node_cpu_periods_total", node="trainer-1"): "0+8x90",
    name("syncbed_node_cpu_throttled_periods_total", node="trainer-1"): "0+6x90",
    name("syncbed_node_network_transmit_bytes_total", node="trainer-1", interface="eth0"): "5+1024x90",
    name("syncbed_node_network_transmit_bytes_total", node="trainer-1", interface="eth1"): "5+512x90",
    name("syncbed_node_network_receive_drops_total", node="trainer-1", interface="eth0"): "0+2x90",
    name("syncbed_node_memory_working_set_bytes", node="trainer-1"): "768x90",
    name("syncbed_node_memory_limit_bytes", node="trainer-1"): "1024x90",
    name("syncbed_node_oom_kills_total", node="trainer-1"): "3x90",
    name("up", node="trainer-1", job="node"): "1x90",
    name("up", node="trainer-2", job="node"): "0x90",
}
OF_A = {str(step): step for step in range(1, 27)}
OF_B = {str(step): step / 2 for step in range(2, 2 * (END - 27) + 1, 2)}
NOTHING = {}

# (dashboard, panel, legend, chosen run, second): labels to value
CASES = {
    ("Compare", "Loss by step", "{{run}}", A, END): {name("", run=A, step=n): 8 for n in OF_A},
    ("Compare", "Loss by step", "{{run}}", B, END): {name("", run=B, step=n): 4 for n in OF_B},
    ("Compare", "Accuracy by step", "{{run}}", B, END): {name("", run=B, step=n): 0.75 for n in OF_B},
    ("Compare", "Seconds by step", "{{run}}", A, END): {name("", run=A, step=n): s for n, s in OF_A.items()},
    ("Compare", "Seconds by step", "{{run}}", B, END): {name("", run=B, step=n): s for n, s in OF_B.items()},
    ("Compare", "Bytes sent per step", "{{run}}", B, END): {name("", run=B): 128},
    ("Compare", "Exposed sync", "{{run}}", B, END): {name("", run=B): 0.25},
    ("Training", "Loss", "rank {{rank}}", A, 20): {name("", rank=0): 8, name("", rank=1): 8},
    ("Training", "Loss", "rank {{rank}}", B, 20): NOTHING,
    ("Training", "Loss", "rank {{rank}}", A, 50): NOTHING,
    ("Training", "Loss", "rank {{rank}}", B, 50): {name("", rank=0): 4, name("", rank=1): 4},
    ("Training", "Step time", "rank {{rank}}", A, 20): {name("", rank=0): 1, name("", rank=1): 1},
    ("Training", "Step time", "rank {{rank}}", B, 50): {name("", rank=0): 0.5, name("", rank=1): 0.5},
    ("Training", "Bytes sent per step", "rank {{rank}}", A, 20): {name("", rank=0): 64},
    ("Training", "Bytes sent per step", "rank {{rank}} formula", A, 20): {name("", rank=0): 64},
    ("Training", "Bytes sent per step", "rank {{rank}}", B, 50): {name("", rank=0): 128},
    ("Training", "Bytes sent per step", "rank {{rank}} formula", B, 50): {name("", rank=0): 128},
    ("Training", "Traffic by collective", "{{collective}} {{direction}}", B, 50): {
        name("", collective="all_reduce", direction="sent"): 256
    },
    ("Training", "Staleness", "rank {{rank}}", B, 50): {name("", rank=1): 3},
    ("Cluster", "CPU", "{{node}}", B, 50): {name("", node="trainer-1"): 0.375},
    ("Cluster", "CPU", "{{node}} limit", B, 50): {name("", node="trainer-1"): 0.5},
    ("Cluster", "CPU by mode", "{{node}} {{mode}}", B, 50): {
        name("", node="trainer-1", mode="user"): 0.25,
        name("", node="trainer-1", mode="system"): 0.125,
    },
    ("Cluster", "CPU throttled", "{{node}}", B, 50): {name("", node="trainer-1"): 0.75},
    ("Cluster", "Network sent", "{{node}}", B, 50): {name("", node="trainer-1"): 1536},
    ("Cluster", "Packet drops", "{{node}} received", B, 50): {name("", node="trainer-1"): 2},
    ("Cluster", "Memory", "{{node}}", B, 50): {name("", node="trainer-1"): 768},
    ("Cluster", "Memory", "{{node}} limit", B, 50): {name("", node="trainer-1"): 1024},
    ("Cluster", "OOM kills", "{{node}}", B, 50): {name("", node="trainer-1"): 0},
    ("Cluster", "Scrapes", "{{node}}", B, 50): {name("", node="trainer-1"): 1, name("", node="trainer-2"): 0},
}


def test_what_panels_show_of_known_figures(tmp_path):
    found = {(query.dashboard, query.panel, query.legend): query for query in queries()}
    cases = []
    for (dashboard, panel, legend, run, second), expected in CASES.items():
        expression = Window(run, 0, END).fill(found[dashboard, panel, legend].expression)
        samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
        cases.append({"expr": expression, "eval_time": f"{second}s", "exp_samples": samples})
    series = [{"series": one, "values": values} for one, values in SERIES.items()]
    tests = [{"interval": "1s", "input_series": series, "promql_expr_test": cases}]
    file = tmp_path / "test.json"  # JSON is YAML
    rules = [str(RULES / "recording.yml")]
    file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": "1s", "tests": tests}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
