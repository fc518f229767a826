"""PromQL as tests look at it: which metrics and labels a query names, what is known of them, and promtool."""

import os
import re
import shutil
import subprocess
from functools import cache

import pytest
import yaml

from monitor.checkout import ROOT

RULES = ROOT / "images/prometheus"
_OF_PROMETHEUS = {"up": {"job", "node"}, "ALERTS": {"alertname", "alertstate", "severity", "node", "rank"}}
_METRIC = re.compile(r"(?<![\w:])(?:syncbed_\w+|(?:node|rank|cluster):[\w:]+|up|ALERTS)(?![\w:(])")
_TYPES = ("gauge", "counter", "histogram")


@cache
def rule_files() -> list:
    """The rule files that Prometheus loads, parsed."""
    names = yaml.safe_load((RULES / "prometheus.yml").read_text())["rule_files"]
    return [yaml.safe_load((RULES / name).read_text()) for name in names]


def rules(kind: str) -> dict[str, dict]:
    """Every rule of a kind, `record` or `alert`, by its name."""
    listed = [rule for file in rule_files() for group in file["groups"] for rule in group["rules"] if kind in rule]
    named = {rule[kind]: rule for rule in listed}
    assert len(named) == len(listed)
    return named


def metrics(query: str) -> set[str]:
    """The metrics that a query names."""
    return set(_METRIC.findall(query))


@cache
def known() -> dict[str, tuple[str, set[str]]]:
    """Metric to (type, labels), as its series are called: docs/reference/metrics.md, our rules, Prometheus' own."""
    found = {name: ("gauge", labels) for name, labels in _OF_PROMETHEUS.items()}
    rows = re.findall(
        r"^\| `(syncbed_\w+)` \| (\w+) \|[^|]*\|([^|]*)\|", (ROOT / "docs/reference/metrics.md").read_text(), re.M
    )
    for name, kind, columns in rows:
        assert kind in _TYPES, name
        labels = {"node", "job", *re.findall(r"`(\w+)`", columns)}
        if kind == "histogram":
            found |= {name + part: ("counter", labels) for part in ("_sum", "_count")}
            found[name + "_bucket"] = ("counter", labels | {"le"})
        else:
            found[name] = (kind, labels)
    for name, rule in rules("record").items():
        of = set().union(*(found[metric][1] for metric in metrics(rule["expr"])))
        level = {"node": {"node"}, "rank": of - {"job"}, "cluster": set()}[name.split(":")[0]]
        found[name] = ("gauge", level)
    return found


def labels(query: str) -> set[str]:
    """The labels that a query selects by, groups by, joins on, takes over, or makes."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', query)
    used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*""', text))
    for group in re.findall(r"\b(?:by|on|group_left|group_right|without|ignoring)\s*\(([^()]*)\)", text):
        used |= set(re.split(r",\s*", group)) - {""}
    return used


def promtool(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess:
    """Run promtool; where there is none the test is skipped, or fails with SYNCBED_REQUIRE_PROMTOOL=1."""
    if not shutil.which("promtool"):
        if os.environ.get("SYNCBED_REQUIRE_PROMTOOL") == "1":
            pytest.fail("SYNCBED_REQUIRE_PROMTOOL=1, and promtool is not on the PATH", pytrace=False)
        pytest.skip("promtool is not installed here; Debian's package prometheus has it")
    return subprocess.run(["promtool", *arguments], input=text, text=True, capture_output=True)
