"""What each strategy costs on the cluster: step time against the same steps without synchronisation, in one run.

    make cluster-up CPUS=1 && .venv/bin/python benchmarks/sync_cost.py DATA_DIR=cifar   # an open network, 10 minutes
    make cluster-up CPUS=0.5 && .venv/bin/python benchmarks/sync_cost.py DATA_DIR=cifar # the default limit on 2 cores
    make cluster-up CPUS=1 && .venv/bin/python benchmarks/sync_cost.py --rate 200mbit DATA_DIR=cifar

VGG-11, 4 nodes, bf16, global batch 256, on CIFAR-10 (DATA_DIR) or, where that cannot be had, synthetic images. The
steps without synchronisation are those of psgd, which trains alone until its last step. Strategies take turns, so that
drift hits all alike. Goals on an open network: ddp 1.20, flat all_reduce 1.30, gather_scatter 1.45; the nodes' CPU
limit decides: with half a core each, what a node leaves unused while it waits is lost to all, and the node of rank 0
or of a server, which has more to do, is held back. At a shaped
200 Mbit/s: flat all_reduce sends at 90 % of the rate or more while it waits, COMPRESS=bf16 halves the exposed time,
COMPRESS=powersgd RANK=2 brings it under a tenth.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import publish, train

COMMON = ["RUNTIME=docker", "NODES=4", "PRECISION=bf16"]
FLAT = ["SYNC=all_reduce", "GRANULARITY=flat"]
OPEN = {
    "none (psgd)": ["SYNC=psgd"],
    "ddp": ["SYNC=ddp"],
    "all_reduce flat": FLAT,
    "ring": ["SYNC=ring"],
    "gather_scatter": ["SYNC=gather_scatter"],
    "ps_sync colocated": ["SYNC=ps_sync", "COLOCATED=1"],
}
SHAPED = {
    "all_reduce flat": FLAT,
    "all_reduce flat bf16": [*FLAT, "COMPRESS=bf16"],
    "all_reduce flat powersgd": [*FLAT, "COMPRESS=powersgd"],
}


def measure(cases: dict[str, list[str]], common: list[str], steps: int, turns: int) -> tuple[dict[str, dict], dict]:
    """For each case the median over its turns of the ranks' mean figures (seconds per step, exposed, bytes sent), and
    what they were trained on: data and the nodes' limits.
    """
    figures = {name: [] for name in cases}
    for _ in range(turns):
        for name, words in cases.items():
            result = train(*COMMON, *common, *words, f"STEPS={steps}")
            workers = [rank for rank in result.ranks if rank.is_worker]
            figures[name].append(
                {
                    "step": statistics.fmean(rank.step_seconds.mean for rank in workers),
                    "exposed": statistics.fmean(rank.phase_seconds.sync for rank in workers),
                    "sent": statistics.fmean(rank.sent_bytes / rank.steps for rank in workers),
                }
            )
            print(name, json.dumps(figures[name][-1]), file=sys.stderr)
    medians = {
        name: {key: statistics.median(t[key] for t in all_turns) for key in all_turns[0]}
        for name, all_turns in figures.items()
    }
    document = result.document()
    return medians, {"data": result.data.label, "limits": document["limits"], "links": document["links"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", help="RATE= of every run, as 200mbit")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("words", nargs="*", help="further settings of every run")
    args = parser.parse_args()
    arguments = {name: value for name, value in vars(args).items() if name != "words"}
    spec = {"model": "vgg11", "batch": 256, "nodes": 4, "precision": "bf16", **arguments}
    if not args.rate:
        medians, on = measure(OPEN, args.words, args.steps, args.turns)
        alone = medians["none (psgd)"]["step"]
        figures = {name: {"to_none": round(f["step"] / alone, 3)} for name, f in medians.items()}
        publish(f"sync_cost_{on['limits'][0]['cpus']:g}_cores", figures, spec | on)
        return
    medians, on = measure(SHAPED, [*args.words, f"RATE={args.rate}"], args.steps, args.turns)
    bits = on["links"][0]["rate_bits"]
    plain = medians["all_reduce flat"]
    figures = {
        name: {
            "share_of_rate": round(f["sent"] * 8 / f["exposed"] / bits, 3),
            "exposed_to_plain": round(f["exposed"] / plain["exposed"], 3),
        }
        for name, f in medians.items()
    }
    publish(f"sync_cost_{args.rate}", figures, spec | on)


if __name__ == "__main__":
    main()
