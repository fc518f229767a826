"""Values of settings: what may be given, and one line for what may not.

check = whole(1, 16)
check("NODES", 17)       # raises SpecError: NODES=17: a whole number from 1 to 16
"""

import math
from collections.abc import Callable, Collection
from difflib import get_close_matches

Check = Callable[[str, object], None]  # of a setting's name and its value; raises SpecError
MOST_LETTERS = 200  # of a value, in what is said of it
SWITCHES = ("SYNC_BN", "COLOCATED", "EVALUATOR", "TENSORBOARD")
OTHER_WORDS = {  # what the settings are called elsewhere
    "STRATEGY": "SYNC",
    "ALGORITHM": "SYNC",
    "DATASET": "DATA",
    "NETWORK": "MODEL",
    "ARCH": "MODEL",
    "WORKERS": "NODES",
    "NUM_NODES": "NODES",
    "WORLD_SIZE": "NODES",
    "PROCESSES": "NPROC",
    "PROCS": "NPROC",
    "BATCH_SIZE": "BATCH",
    "LEARNING_RATE": "LR",
    "ITERATIONS": "STEPS",
    "ITERS": "STEPS",
    "EPOCH": "EPOCHS",
    "BANDWIDTH": "RATE",
    "LATENCY": "DELAY",
    "CORES": "CPUS",
    "MEM": "MEMORY",
    "DTYPE": "PRECISION",
}


class SpecError(ValueError):
    """A value that cannot be run: which setting, what was given, what would do. str() is one line."""

    def __init__(self, setting: str, value: object, hint: str):
        self.setting, self.value, self.hint = setting, value, hint
        text = " ".join(str(value).splitlines())
        super().__init__(f"{setting}={text if len(text) <= MOST_LETTERS else text[:MOST_LETTERS] + '…'}: {hint}")


def one_of(allowed: Collection[str]) -> Check:
    """The check for one of these values."""

    def check(name: str, value: object) -> None:
        if value not in allowed:
            raise SpecError(name, value, "one of: " + ", ".join(allowed))

    return check


def whole(low: int, high: int | None = None) -> Check:
    """The check for a whole number in this range, ends included."""
    hint = f"a whole number from {low}"
    if high is not None:
        hint = "0 or 1" if (low, high) == (0, 1) else f"{hint} to {high}"

    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise SpecError(name, value, hint)

    return check


def number(low: float, *, strictly: bool = False, below: float = math.inf, most: float = math.inf) -> Check:
    """The check for a finite number in this range; strictly: `low` itself is not in it."""
    hint = f"a number {'above' if strictly else 'from'} {low}"
    if below != math.inf:
        hint += f" and below {below}"
    elif most != math.inf:
        hint += f" and at most {most}"

    def check(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise SpecError(name, value, hint)
        if value < low or (strictly and value == low) or value >= below or value > most:
            raise SpecError(name, value, hint)

    return check


def convert(name: str, text: str, kind: object):
    """Text to the field's type; what is not even a number raises SpecError here, ranges are checked when built."""
    if kind is str:
        return text
    if name == "SHARES":
        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError:
            raise SpecError(name, text, "whole numbers, one for each worker, as 2,1,1,1") from None
    try:
        return float(text) if kind is float else int(text)
    except ValueError:
        raise SpecError(name, text, _kind_hint(name, kind)) from None


def _kind_hint(name: str, kind: object) -> str:
    if name in SWITCHES:
        return "0 or 1"
    return "a number" if kind is float else "a whole number"


def unknown(name: str, settings: Collection[str]) -> str:
    """The hint for a setting that does not exist. `settings`: those that do."""
    other = OTHER_WORDS.get(name.upper())
    near = [other] if other in settings else get_close_matches(name.upper(), list(settings), n=1)
    return f"no such setting; did you mean {near[0]}?" if near else "no such setting; one of: " + ", ".join(settings)
