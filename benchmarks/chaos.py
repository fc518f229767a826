"""Every fault on every strategy: does the run go on, or end in time and name the right rank?

    make cluster-up NODES=3 && make chaos      # about 40 minutes; writes docs/reference/faults.md

What is to come of each is stated below and held against what came. Faults that pass (a short freeze, less CPU, another
link, a short partition) are brought about one after the other in one run. A run is small: softmax regression on
synthetic images. `--only ddp,ring --faults kill` does a part anew and keeps the rest of the last figures.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import RESULTS, ROOT, publish
from monitor.engine.images import code_hash
from monitor.results.result import Result
from trainer.registry import SYNCS

DEADLINE = 10  # seconds, of every run
NOTICED_SECONDS = DEADLINE + 25  # from a fault to the end of the run; the 25 are for ending three nodes' processes
SETTINGS = {"RUNTIME": "docker", "MODEL": "logistic", "DATA": "synthetic", "BATCH": "12", "DEADLINE": str(DEADLINE)}
PASS, ENDS, WITHOUT = "goes on", "ends", "goes on without it"
FAULTS = {  # FAULT=, {rank} and {node} being the target's, {rest} the other nodes
    "passing": "freeze:{rank}@step=5+1s; slow:{node}@step=6+1s,cpus=0.1; link:{node}@step=7+1s,rate=5mbit",
    "parted": "partition:{rest}|{node}@step=5+1s",
    "kill": "kill:{rank}@step=5",
    "freeze": "freeze:{rank}@step=5",
    "partition": "partition:{rest}|{node}@step=5",
    "restart": "restart:{node}@step=5",
}
TITLES = {
    "passing": "frozen for 1 s, slow, another link",
    "parted": "parted for 1 s",
    "kill": "killed",
    "freeze": "frozen for good",
    "partition": "parted for good",
    "restart": "node restarted",
}
KINDS = {  # of the error of a run that ends
    "kill": {"killed"},
    "freeze": {"frozen"},
    "restart": {"lost", "killed"},
    "partition": {"peer", "deadline"},
}


def stated(fault: str, sync: str) -> str | None:
    """What is to come of it. None: there is no such thing, as one node cannot be parted."""
    if SYNCS[sync].one_node and fault in ("parted", "partition"):
        return None
    if fault in ("passing", "parted"):
        return PASS
    return WITHOUT if SYNCS[sync].survives_lost_workers else ENDS


def words(fault: str, sync: str, steps: int) -> dict[str, str]:
    """The settings of a run; its target is worker 1, where there is one."""
    strategy = SYNCS[sync]
    nodes = 1 if strategy.one_node else 3 if strategy.servers else 2
    target = {"rank": int(sync != "single"), "node": int(not strategy.one_node)}
    rest = ",".join(str(node) for node in range(nodes) if node != target["node"])
    size = {"NODES": str(nodes), "STEPS": str(steps)} | ({"NPROC": "2"} if strategy.shared_memory else {})
    return SETTINGS | size | {"SYNC": sync, "FAULT": FAULTS[fault].format(**target, rest=rest)}


def judge(fault: str, sync: str, result: Result) -> dict:
    """What came of it: `outcome`, `wrong` (None: as stated), `seconds` from the fault to the end of training."""
    error, faults = result.error, result.faults
    target = int(sync != "single")
    lost = [worker.rank for worker in result.lost_workers]
    outcome = ENDS if error else WITHOUT if lost else PASS
    wrong, seconds = None, None
    if any(record.began_seconds is None or record.error for record in faults):
        wrong = f"not brought about: {[record.model_dump() for record in faults]}"
    elif outcome != stated(fault, sync):
        wrong = error.message if error else f"the run {outcome}"
    elif outcome == WITHOUT and lost != [target]:
        wrong = f"went on without ranks {lost}"
    elif outcome == ENDS:
        seconds = result.seconds.total - result.seconds.startup - faults[0].began_seconds
        blamed = {"kill": [target], "freeze": [target], "restart": _on(int(not SYNCS[sync].one_node), result)}.get(
            fault
        )
        if error.kind not in KINDS[fault] or (blamed and error.rank not in blamed):
            wrong = error.message
        elif seconds > NOTICED_SECONDS:
            wrong = f"only after {seconds:.0f} s"
    kind = error.kind if error else None
    return {"outcome": outcome, "kind": kind, "seconds": seconds and round(seconds, 1), "wrong": wrong}


def _on(node: int, result: Result) -> list[int]:
    """The ranks of this node: with it all of them are lost, and each may be the first that is known to be."""
    return [rank.rank for rank in result.ranks if rank.node == f"trainer-{node}"]


def run(settings: dict[str, str], seconds: float = 240) -> Result:
    """The result of one run, which may fail; raises RuntimeError for one that hangs or is refused."""
    arguments = [f"{name}={text}" for name, text in settings.items()]
    command = [sys.executable, "-m", "monitor.cli", "run", *arguments, "PAGES=0", "--json"]
    try:
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
        return Result.model_validate_json(process.stdout)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not over after {seconds:g} s") from None
    except ValueError:
        raise RuntimeError(process.stderr.strip()) from None


def page(record: dict) -> str:
    """docs/reference/faults.md from the figures."""
    figures, machine, versions = record["figures"], record["machine"], record["versions"]
    lines = [
        "# What comes of faults",
        "",
        "Made by `make chaos` ([benchmarks/chaos.py](../../benchmarks/chaos.py) states what is to come of each; with",
        f"`--only` and `--faults` a part is done anew): {machine['cores']} cores of {machine['cpu']},",
        f"{machine['system']}, torch {versions['torch']}, Python {versions['python']}. Do not edit.",
        "How a fault is written is in [monitor/conditions/faults.py](../../monitor/conditions/faults.py).",
        "",
        f"The target is worker 1 and its node, `DEADLINE={DEADLINE}`. **ends**: the run ends, with the kind of error",
        "and the seconds from the fault to the end of the command; the error names the target, of a restarted node any",
        "of its ranks, and for a partition, where each side blames the other, any. **goes on without it**: the others",
        "finish, the result lists the worker.",
        f"**-**: one node cannot be parted. Nothing takes longer than {NOTICED_SECONDS} s.",
        "",
        "| strategy | " + " | ".join(TITLES.values()) + " |",
        "|---|" + "---|" * len(TITLES),
    ]
    for sync in SYNCS:
        cells = [_cell(figures.get(sync, {}).get(fault), stated(fault, sync)) for fault in FAULTS]
        lines.append(f"| `{sync}` | " + " | ".join(cells) + " |")
    codes = {came.get("code") for outcomes in figures.values() for came in outcomes.values()}
    if len(codes) > 1:
        lines += ["", f"Parts were done with {len(codes)} versions of the code, see benchmarks/results/faults.json."]
    lines += ["", *(f'- `{fault}`: `FAULT="{text}"`' for fault, text in FAULTS.items()), ""]
    return "\n".join(lines)


def _cell(came: dict | None, expected: str | None) -> str:
    if expected is None:
        return "-"
    if came is None:
        return f"not run; stated: {expected}"
    if came["wrong"]:
        return f"**not as stated** ({expected}): {came['wrong'][:120]}"
    return expected if came["kind"] is None else f"{expected}: {came['kind']}, {came['seconds']:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SYNCS), help="strategies, parted by commas")
    parser.add_argument("--faults", default=",".join(FAULTS), help="faults, parted by commas")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    path, where = RESULTS / "faults.json", {}
    if project := os.environ.get("PROJECT"):
        where["PROJECT"] = project
    figures = json.loads(path.read_text())["figures"] if path.exists() else {}
    wrong = 0
    for fault in args.faults.split(","):
        for sync in args.only.split(","):
            if stated(fault, sync) is None:
                continue
            began = time.monotonic()
            try:
                came = judge(fault, sync, run(words(fault, sync, args.steps) | where))
            except RuntimeError as error:
                came = {"outcome": None, "kind": None, "seconds": None, "wrong": str(error)}
            wrong += bool(came["wrong"])
            came["code"] = code_hash()[:12]  # parts may be done anew later
            figures.setdefault(sync, {})[fault] = came
            print(f"{sync} {fault}: {came} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
            publish("faults", figures, SETTINGS | {"STEPS": str(args.steps)}, show=False)
            (ROOT / "docs/reference/faults.md").write_text(page(json.loads(path.read_text())))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
