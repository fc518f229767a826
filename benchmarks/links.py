"""Do links do what they were asked for, and does a collective fill them?

    make cluster-up CPUS=1 && .venv/bin/python benchmarks/links.py    # 6 minutes

At each rate: what the run's own check measured between the nodes before the first step, over what was asked for, and
what a flat all-reduce of VGG-11's gradients sends, over the rate. A rate counts all of a frame, so of it TCP can use
1448/1514 (Ethernet, IPv4, TCP with timestamps). The batch is small: a rank that waits for one that still computes does
not use its link, which would be charged to it. With netem in the kernel (`--delay 20ms`) the round trips as well.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import publish, train
from monitor.results.result import Result

RATES = ("50mbit", "100mbit", "200mbit", "1gbit")
SETTINGS = ("RUNTIME=docker", "NODES=4", "SYNC=all_reduce", "GRANULARITY=flat", "BATCH=8", "DATA=synthetic")


def measure(rate: str, steps: int, more: list[str]) -> tuple[dict, Result]:
    """Figures of one run, and its result."""
    result = train(*SETTINGS, f"RATE={rate}", f"STEPS={steps}", "DEADLINE=120", *more)
    link, measured = result.links[0], [link.measured for link in result.links]
    sent = statistics.fmean(rank.sent_bytes / rank.steps for rank in result.ranks)
    exposed = statistics.fmean(rank.phase_seconds.sync for rank in result.ranks)
    figures = {
        "measured_to_asked": [round(each.rate_bits / link.rate_bits, 3) for each in measured],
        "round_trip_ms": [round(each.round_trip_ms, 3) for each in measured],
        "congestion_control": link.congestion,
        "all_reduce_payload_to_asked": round(8 * sent / exposed / link.rate_bits, 3),
    }
    if link.delay_ms:
        figures["round_trip_to_asked"] = [round(each.round_trip_ms / 2 / link.delay_ms, 3) for each in measured]
    return figures, result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what links do, and what an all-reduce makes of them.")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--delay", help="DELAY= of every run; needs a kernel with netem")
    parser.add_argument("--congestion", help="CONGESTION= of every run")
    args = parser.parse_args()
    settings = {"DELAY": args.delay, "CONGESTION": args.congestion}
    more = [f"{name}={value}" for name, value in settings.items() if value]
    results = {rate: measure(rate, args.steps, more) for rate in RATES}
    result = next(iter(results.values()))[1]
    name, figures = "links", {rate: each for rate, (each, _) in results.items()}
    if args.congestion:
        name += f"_{args.congestion}"
    publish(name, figures, result.spec.values() | {"limits": result.document()["limits"]})


if __name__ == "__main__":
    main()
