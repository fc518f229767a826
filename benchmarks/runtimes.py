"""What containers cost: step time of the same run on the cluster and as local processes, in one run.

    make cluster-up && .venv/bin/python benchmarks/runtimes.py      # about 5 minutes on 2 cores

Both share the machine's cores equally among 4 ranks: the cluster by a CPU limit on each node, the local processes by
the scheduler alone. They take turns, so that drift hits both alike. Reported, no goal.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import publish, train
from monitor.results.result import Result

STEPS, TURNS = 12, 3


def median_step(runtime: str) -> tuple[float, Result]:
    """Median step of rank 0, first step left out, in seconds; and the result."""
    result = train(f"RUNTIME={runtime}", "SYNC=ddp", "DATA=synthetic", "NODES=4", f"STEPS={STEPS}")
    return result.ranks[0].step_seconds.median, result


def main() -> None:
    local, docker, turns, throttled = [], [], [], []
    for _ in range(TURNS):
        a, _ = median_step("local")
        b, result = median_step("docker")
        turns.append(round(b / a, 4))
        throttled += [rank.throttled_seconds for rank in result.ranks]
        local.append(a)
        docker.append(b)
    figures = {
        "docker_to_local": round(statistics.median(docker) / statistics.median(local), 4),
        "by_turn": turns,
        "throttled_share_of_training": round(statistics.fmean(throttled) / result.seconds.training, 3),
    }
    publish("runtimes", figures, result.spec.values())


if __name__ == "__main__":
    main()
