"""The one escape of PromQL and OpenMetrics: what comes out is one string, and it is the text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from monitor.dashboards.check import Window
from monitor.metrics.promql import escaped, escaped_pattern, has_plain_names, selector

HOSTILE = ['"} or vector(1) or x{a="', "\\", '\\"', "\n# EOF", 'a\\n"b', "$run", "é\u2028\r\x00"]
STRING = re.compile(r'"(?:[^"\\\n]|\\[\\"n])*"')  # of PromQL, with the escapes that are used
ANY = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec="utf-8"), max_size=40))


def read(quoted: str) -> str:
    """The text that a string of PromQL stands for."""
    assert STRING.fullmatch(quoted), quoted
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), quoted[1:-1])


@given(ANY)
@settings(max_examples=60)
def test_a_value_is_one_string_and_says_what_it_said(text):
    assert read(f'"{escaped(text)}"') == text


@given(ANY, ANY)
@settings(max_examples=60)
def test_a_pattern_matches_its_text_alone(text, other):
    pattern = read(f'"{escaped_pattern(text)}"')
    assert re.fullmatch(pattern, text)
    assert bool(re.fullmatch(pattern, other)) == (text == other)


@pytest.mark.parametrize("run", HOSTILE)
def test_a_run_that_names_itself_as_it_likes_stays_within_its_quotes(run):
    """The id of a run is a label that its rank has written."""
    query = Window(run, 0, 60).fill('x{run=~"$run"}')
    assert query.startswith("x{run=~") and query.endswith("}")
    assert re.fullmatch(read(query.removeprefix("x{run=~").removesuffix("}")), run)


@given(ANY)
@settings(max_examples=40)
def test_a_line_of_openmetrics_is_read_as_one_series(text):
    labels = {"__name__": "x", "a": text, "b": "c"}
    (family,) = text_string_to_metric_families(f"{selector(labels)} 1\n# EOF\n")
    (sample,) = family.samples
    assert {"__name__": sample.name, **sample.labels} == labels


@pytest.mark.parametrize(
    "labels", [{}, {"a": "b"}, {"__name__": "x y"}, {"__name__": 'x"} 1\n'}, {"__name__": "x", 'a="b"} 2\n': ""}]
)
def test_names_that_a_line_cannot_hold_are_known(labels):
    assert not has_plain_names(labels)
    assert has_plain_names({"__name__": "rank:syncbed_x:mean1m", "node": "any text"})
