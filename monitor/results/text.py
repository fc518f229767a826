"""Numbers as people read them."""


def number(value: float | None, places: int) -> str:
    """The value with this many decimals, or one more digit of one that they would hide; a dash when it is not known."""
    if value is None:
        return "-"
    text = f"{value:,.{places}f}"
    return text if text.strip("-0.") else f"{value:.{places + 1}f}" if abs(value) >= 10 ** -(places + 1) else text


def share(value: float | None) -> str:
    """A share of one as per cent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def mean(values) -> float | None:
    """The mean of the values that are known; None when none is."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count(value: int | None) -> str:
    """A whole number; a dash when it is not known."""
    return "-" if value is None else f"{value:,}"
