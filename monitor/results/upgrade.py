"""Results of older versions, brought up to the schema of this one.

What is not as any version wrote it stays as it is: validation says what is wrong with it.
"""

from typing import Any

from monitor.results.result import SCHEMA
from trainer.layout import WORKER


def upgrade(document: dict[str, Any]) -> dict[str, Any]:
    """The document in schema SCHEMA; its own is at most that. The document itself is not changed."""
    for schema in range(document["schema"], SCHEMA):
        document = _STEPS[schema](document) | {"schema": schema + 1}
    return document


def _from_1(document: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 grew fields over time. Before each was added, no run had what it describes."""
    since = {"error": None, "limits": [], "links": [], "faults": [], "resumed_from": None}
    document = since | document
    spec, data, ranks = (document.get(name) for name in ("spec", "data", "ranks"))
    if isinstance(spec, dict) and isinstance(data, dict):
        names = {name: spec["data"] for name in ("label", "key") if "data" in spec}
        document["data"] = names | data
    if isinstance(ranks, list):
        document["ranks"] = [{"role": WORKER} | rank if isinstance(rank, dict) else rank for rank in ranks]
    return document


_STEPS = {1: _from_1}
