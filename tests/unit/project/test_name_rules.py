"""Code asks a runtime or a strategy what it can do, never what it is called.

A name that is compared, looked up, or a key of a table stands where the property should: a new runtime or strategy
would be missed there. Names belong to the registry, to monitor/capabilities.py and to monitor/runtime/.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.capabilities import RUNTIMES
from trainer.registry import SYNCS

ROOT = Path(__file__).parents[3]
PACKAGES = ("trainer", "node", "monitor", "serving")
NAMES = {*RUNTIMES, *SYNCS}
HOMES = ("trainer/registry.py", "monitor/capabilities.py", "monitor/runtime/")
OTHER_MEANINGS = {
    ("monitor/engine/sdk.py", "docker"): "a word in a message of the engine",
    ("trainer/sync/gossip.py", "ring"): "a topology",
}


def decisions(source: str) -> Iterator[str]:
    """The names by which this source decides something: compared, looked up, matched, or keys of a table."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            sides = [part.elts if isinstance(part, ast.Tuple | ast.List | ast.Set) else [part] for part in parts]
            yield from names(part for side in sides for part in side)
        elif isinstance(node, ast.Subscript):
            yield from names([node.slice])
        elif isinstance(node, ast.Dict):
            yield from names(key for key in node.keys if key)
        elif isinstance(node, ast.MatchValue):
            yield from names([node.value])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("get", "startswith", "endswith"):
            yield from names(node.args[:1])


def names(nodes) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and node.value in NAMES:
            yield node.value


def test_no_module_decides_by_a_name():
    found = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(HOMES):
                found |= {(place, name) for name in decisions(path.read_text())}
    wrong = [f"{place}: {name!r}" for place, name in sorted(found - OTHER_MEANINGS.keys())]
    assert not wrong, f"ask the registry, or monitor/capabilities.py, for a property: {'; '.join(wrong)}"
    assert found == OTHER_MEANINGS.keys(), "an entry of OTHER_MEANINGS that nothing uses"


@pytest.mark.parametrize(
    "source",
    [
        "run.runtime == 'local'",
        "'docker' != place",
        "run.runtime in ('docker', 'other')",
        "'local' in first",
        "first['docker']",
        "sentences = {'ddp': 1}",
        "limits.get('docker')",
        "sync.startswith('ps_sync')",
        "match sync:\n    case 'ring' | 'other':\n        pass",
    ],
)
def test_each_way_to_decide_is_seen(source):
    assert list(decisions(source))


@pytest.mark.parametrize("source", ["name = 'docker'", "Finding('engine', 'docker')", "{'RUNTIME': 'docker'}"])
def test_giving_a_name_is_no_decision(source):
    assert not list(decisions(source))
