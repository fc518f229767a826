"""What Prometheus asks and takes in: nodes answer what they like, and it is in a network that they do not reach."""

import re

import pytest
import yaml
from promql import RULES, known

from node.agent import targets
from trainer.spec import MAX_NODES

CONFIG = yaml.safe_load((RULES / "prometheus.yml").read_text())
JOBS = {job["job_name"]: job for job in CONFIG["scrape_configs"]}
NODE = JOBS["node"]
SET_BY_PROMETHEUS = {"__scheme__": "http", "__metrics_path__": "/metrics"}


def relabelled(found: dict[str, str], rules: list[dict]) -> dict[str, str] | None:
    """What Prometheus makes of a target's or series' labels; None: it is dropped. Regular expressions are anchored."""
    have = dict(found)
    for rule in rules:
        regex = rule.get("regex", "(.*)")
        match = re.fullmatch(regex, ";".join(have.get(name, "") for name in rule.get("source_labels", ())))
        match rule.get("action", "replace"):
            case "replace" if match:
                have[rule["target_label"]] = rule.get("replacement", r"\1").replace("$1", r"\1")
                have[rule["target_label"]] = match.expand(have[rule["target_label"]])
            case "keep" if not match:
                return None
            case "labelkeep":
                have = {name: value for name, value in have.items() if re.fullmatch(regex, name)}
    return have


def asked(address: str, **labels: str) -> dict[str, str] | None:
    """How Prometheus asks a target that trainer-0's agent has named, with these labels; None: not at all."""
    defaults = {"job": "node", "__scrape_interval__": "1s", "__scrape_timeout__": "1s", **SET_BY_PROMETHEUS}
    return relabelled(defaults | labels | {"__address__": address}, NODE["relabel_configs"])


def test_every_node_is_asked_once_a_second_under_its_own_name():
    (group,) = targets(MAX_NODES, 9400)
    for rank, address in enumerate(group["targets"]):
        labels = asked(address, **group["labels"])
        assert labels == {
            "__address__": f"trainer-{rank}:9400",
            "__scrape_interval__": "1s",
            "__scrape_timeout__": "1s",
            "job": "node",
            "node": f"trainer-{rank}",
            "instance": f"trainer-{rank}",
            **SET_BY_PROMETHEUS,
        }
    assert NODE["target_limit"] == MAX_NODES


@pytest.mark.parametrize(
    "address",
    [
        "serve:8081",  # management of models
        "grafana:3000",
        "prometheus-monitoring:9090",
        "trainer-0:8081",
        "trainer-16:9400",
        "trainer-0:9400.example:80",
        "user@trainer-0:9400",
        "serve:8081#trainer-0:9400",
        "169.254.169.254",
        "",
    ],
)
def test_a_target_that_is_no_node_is_not_asked(address):
    assert asked(address) is None


@pytest.mark.parametrize(
    "labels",
    [
        {"__metrics_path__": "/models/vgg", "__scheme__": "https"},
        {"__param_url": "first", "__param_model_name": "csrf"},
        {"__scrape_interval__": "1ms", "__scrape_timeout__": "1ms"},
        {"job": "serving", "node": "trainer-1", "instance": "trainer-1"},
        {"alertname": "NodeDown", "run": "x", "a label": "y"},
    ],
)
def test_a_node_decides_nothing_but_that_it_is_asked(labels):
    assert asked("trainer-2:9400", **labels) == asked("trainer-2:9400")


def test_no_redirect_is_followed_and_all_that_a_node_answers_is_bounded():
    assert NODE["follow_redirects"] is False
    assert all(found["follow_redirects"] is False for found in NODE["http_sd_configs"])
    assert NODE["honor_timestamps"] is False and not NODE.get("honor_labels")
    for limit in ("sample_limit", "label_limit", "label_value_length_limit", "target_limit", "body_size_limit"):
        assert NODE[limit], limit


def test_of_a_nodes_series_those_that_the_docs_name_are_kept():
    def kept(name: str) -> bool:
        return relabelled({"__name__": name}, NODE["metric_relabel_configs"]) is not None

    for metric in known():
        assert kept(metric) == metric.startswith(("syncbed_node_", "syncbed_training_")), metric
    for name in ("ALERTS", "rank:syncbed_training_straggler:ratio1m", "syncbed_serving_requests_total", "prometheus_x"):
        assert not kept(name)
    for name in ('syncbed_node_x"} 1', "syncbed_node_x\n# EOF", "syncbed_training_\u00e9"):
        assert not kept(name), "Prometheus 3 takes names of any letters"


def test_labels_of_a_nodes_series_have_plain_names():
    labels = {"__name__": "syncbed_node_info", "name": 'a "b"', "le": "+Inf", 'x="1"} 2\ny': "z", "a b": "c"}
    kept = relabelled(labels, NODE["metric_relabel_configs"])
    assert kept == {"__name__": "syncbed_node_info", "name": 'a "b"', "le": "+Inf"}
