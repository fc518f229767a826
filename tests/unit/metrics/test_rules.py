"""Prometheus' rules: what promtool says of them, and that each is tested on figures that fit it and that do not."""

import re

import pytest
import yaml
from promql import RULES, known, labels, metrics, promtool, rule_files, rules

from node.training_metrics import KEEP_SECONDS

TESTS = {file.name: yaml.safe_load(file.read_text()) for file in sorted((RULES / "tests").glob("*.yml"))}
SEVERITIES = {"info", "warning", "critical"}


def cases() -> list[tuple[str, bool]]:
    """(alert, whether it fires) of every case of the alerts' tests."""
    return [
        (case["alertname"], bool(case["exp_alerts"]))
        for test in TESTS["alerts.yml"]["tests"]
        for case in test["alert_rule_test"]
    ]


def test_promtool_finds_no_fault():
    done = promtool("check", "config", str(RULES / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = [int(n) for n in re.findall(r"(\d+) rules found", done.stdout)]
    assert found == [len(rules("record")), len(rules("alert"))]


def test_an_ended_runs_last_figures_are_there_until_rules_have_seen_those_of_all_ranks():
    """Each is scraped, then all are looked at once: while the first to end is still there, and the last is."""
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())["global"]
    groups = [group for file in rule_files() for group in file["groups"]]
    assert not [group["name"] for group in groups if "interval" in group], "all as often as the configuration says"
    scrape, evaluation = (int(config[key].removesuffix("s")) for key in ("scrape_interval", "evaluation_interval"))
    apart = 2  # seconds from the first rank's end to the last's
    assert apart + scrape + evaluation <= KEEP_SECONDS


@pytest.mark.parametrize("name", TESTS)
def test_what_rules_make_of_known_figures(name):
    done = promtool("test", "rules", str(RULES / "tests" / name))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", rules("record"))
def test_every_recorded_figure_has_known_values(name):
    expected = [case for test in TESTS["recording.yml"]["tests"] for case in test["promql_expr_test"]]
    assert any(case["exp_samples"] for case in expected if name in metrics(case["expr"]))


@pytest.mark.parametrize("name", rules("alert"))
def test_every_alert_has_a_case_that_fires_and_one_that_does_not(name):
    assert {fires for alert, fires in cases() if alert == name} == {True, False}


@pytest.mark.parametrize("name", rules("alert"))
def test_an_alert_says_how_bad_it_is_and_what_to_do(name):
    rule = rules("alert")[name]
    assert rule["labels"].keys() == {"severity"} and rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "description"}
    description = rule["annotations"]["description"]
    assert description.endswith(".")
    assert re.search(r"`make [a-z-]+|[A-Z]+=|Ctrl-C", description), "what to do"


@pytest.mark.parametrize("name", rules("record"))
def test_a_recorded_name_says_level_metric_and_operation(name):
    assert re.fullmatch(
        r"(node|rank|cluster):syncbed_(node|training)_[a-z_]+:(rate|ratio|mean|max|increase)(\d+[sm])?", name
    )


@pytest.mark.parametrize("name", rules("record") | rules("alert"))
def test_every_metric_and_label_exists(name):
    expression = (rules("record") | rules("alert"))[name]["expr"]
    named = metrics(expression)
    assert named and named <= known().keys(), named - known().keys()
    of = {label for metric in named for label in known()[metric][1]}
    assert labels(expression) <= of, labels(expression) - of
