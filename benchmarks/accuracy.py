"""Accuracy of every strategy at the same number of epochs, on real images, beside one replica's: one table.

    .venv/bin/python benchmarks/accuracy.py        # Fashion-MNIST (Debian: dataset-fashion-mnist), ~10 minutes

cnn5, 2 workers as local processes, the same global batch, learning rate and seed. Bounds, in points of accuracy below
single: synchronous strategies 1; those that synchronise less or are lossy have their own, stated below.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import publish, train

COMMON = ["RUNTIME=local", "MODEL=cnn5", "DATA=fashion_mnist", "BATCH=64", "EPOCHS=1"]
TWO = ["NODES=2"]
EXACT = 1.0
CASES = {  # name: (settings, points below single that are allowed)
    "single": (["SYNC=single"], 0.0),
    "ddp": ([*TWO, "SYNC=ddp"], EXACT),
    "all_reduce": ([*TWO, "SYNC=all_reduce"], EXACT),
    "ring": ([*TWO, "SYNC=ring"], EXACT),
    "gather_scatter": ([*TWO, "SYNC=gather_scatter"], EXACT),
    "ps_sync": ([*TWO, "SYNC=ps_sync", "COLOCATED=1"], EXACT),
    "all_reduce bf16": ([*TWO, "SYNC=all_reduce", "COMPRESS=bf16"], EXACT),
    "all_reduce topk 1 %": ([*TWO, "SYNC=all_reduce", "COMPRESS=topk"], 5.0),
    "all_reduce powersgd 2": ([*TWO, "SYNC=all_reduce", "COMPRESS=powersgd"], 3.0),
    "local_sgd H=8": ([*TWO, "SYNC=local_sgd"], 2.0),
    "diloco H=8": ([*TWO, "SYNC=diloco"], 8.0),
    "gossip ring": ([*TWO, "SYNC=gossip"], 2.0),
    "ps_async": ([*TWO, "SYNC=ps_async", "COLOCATED=1"], 3.0),
    "psgd": ([*TWO, "SYNC=psgd"], 10.0),
    "hogwild": (["SYNC=hogwild", "NPROC=2"], 3.0),
}


def main() -> int:
    figures = {}
    for name, (words, allowed) in CASES.items():
        result = train(*COMMON, *words)
        points = 100 * result.test_accuracy
        below = figures["single"]["accuracy_percent"] - points if figures else 0.0
        figures[name] = {
            "accuracy_percent": round(points, 2),
            "points_below_single": round(below, 2),
            "allowed": allowed,
            "holds": below <= allowed,
        }
        print(name, figures[name], file=sys.stderr)
    publish("accuracy", figures, result.spec.values())
    return 0 if all(figure["holds"] for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
