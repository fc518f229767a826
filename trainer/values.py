"""Values of settings: what may be given, and one line for what may not."""

import math


class SpecError(ValueError):
    """A value that cannot be run: which setting, what was given, what would do. str() is one line."""

    def __init__(self, setting: str, value: object, hint: str):
        self.setting, self.value, self.hint = setting, value, hint
        super().__init__(f"{setting}={value}: {hint}")


def one_of(name: str, value, allowed) -> None:
    """Raise SpecError for a value that is none of these."""
    if value not in allowed:
        raise SpecError(name, value, "one of: " + ", ".join(allowed))


def whole(name: str, value, low: int, high: int | None = None) -> None:
    """Raise SpecError for what is no whole number in this range, ends included."""
    span = "0 or 1" if (low, high) == (0, 1) else f"a whole number from {low}" + (f" to {high}" if high else "")
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise SpecError(name, value, span)


def number(name: str, value, low: float, strictly=False, below=math.inf, most=math.inf) -> None:
    """Raise SpecError for what is no finite number in this range; strictly: `low` itself is not in it."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < low or (strictly and value == low) or value >= below or value > most:
        ends = f" and below {below}" if below != math.inf else f" and at most {most}" if most != math.inf else ""
        raise SpecError(name, value, f"a number {'above' if strictly else 'from'} {low}{ends}")


def convert(name: str, text: str, kind: type):
    """Text to the field's type; what is not even a number raises SpecError here, ranges are checked when built."""
    if kind is str:
        return text
    if name == "SHARES":
        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError:
            raise SpecError(name, text, "whole numbers, one for each worker, as 2,1,1,1") from None
    whole = kind is not float
    try:
        return int(text) if whole else float(text)
    except ValueError:
        switch = name in ("SYNC_BN", "COLOCATED", "EVALUATOR", "TENSORBOARD")
        raise SpecError(name, text, "0 or 1" if switch else "a whole number" if whole else "a number") from None
