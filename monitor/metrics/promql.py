"""Text in PromQL and in OpenMetrics, which write a label's value alike: values come from nodes.

All that a query or a line of a snapshot is made of, and that is no constant of ours, goes through here.
"""

import re
from collections.abc import Mapping

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def escaped(text: str) -> str:
    """The text as it stands between double quotes."""
    return text.translate(_ESCAPES)


def escaped_pattern(text: str) -> str:
    """A regular expression that matches this text alone, as it stands between double quotes."""
    return escaped(re.escape(text))


def has_plain_names(labels: Mapping[str, str]) -> bool:
    """Whether a series, __name__ among its labels, is named as `selector` writes it. Prometheus 3 takes other names."""
    return bool(_NAME.fullmatch(labels.get("__name__", ""))) and all(map(_NAME.fullmatch, labels))


def selector(labels: Mapping[str, str]) -> str:
    """A series with plain names, as both write it: name{label="value",...}."""
    pairs = (f'{name}="{escaped(value)}"' for name, value in sorted(labels.items()) if name != "__name__")
    return f"{labels['__name__']}{{{','.join(pairs)}}}"
