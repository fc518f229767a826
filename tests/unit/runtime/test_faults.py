"""FAULT=: what it says is what is kept, and what cannot be is one line before anything starts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import begun
from scripted import runtime_of

from monitor.capabilities import RUNTIMES
from monitor.conditions import faults
from monitor.conditions.conditions import Conditions, Unavailable
from monitor.conditions.faults import AT_ONCE, KINDS, Fault
from monitor.experiments import cells
from monitor.results import sentences, words
from monitor.results.parts import FaultRecord
from monitor.results.result import Result
from trainer.spec import RunSpec, SpecError

SPEC = RunSpec(nodes=4, nproc=2, batch=8, steps=100)


def of(text: str, spec: RunSpec = SPEC) -> tuple[Fault, ...]:
    return faults.of({"FAULT": text}, spec)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("kill:7@step=20", Fault("kill", ((7,),), step=20)),
        ("freeze:1@10s+5s", Fault("freeze", ((1,),), at_seconds=10, lasts_seconds=5)),
        ("slow:3@step=50,cpus=0.1", Fault("slow", ((3,),), step=50, options=(("cpus", "0.1"),))),
        ("partition:0,1|2,3@0.5s+5s", Fault("partition", ((0, 1), (2, 3)), None, 0.5, 5)),
        ("restart:2@step=5", Fault("restart", ((2,),), step=5)),
    ],
)
def test_a_fault_is_data(text, made):
    assert of(text) == (made,)
    assert str(made) == text


def test_several_are_parted_by_semicolons_and_a_links_words_are_those_of_links():
    slow, link = of("slow:3@5s,cpus=.25; link:3@step=10+2s,rate=10mbit,delay=20ms")
    assert slow.cpus == 0.25
    assert (link.link.rate_bits, link.link.delay_ms, link.lasts_seconds) == (10_000_000, 20, 2)
    assert of("link:0@1s,link=wan-eu-us")[0].link.rate_bits
    assert faults.of({}, SPEC) == ()


numbers = st.integers(0, 999_999).map(lambda n: n / 1000)
moments = st.one_of(st.tuples(st.integers(1, 100), st.none()), st.tuples(st.none(), numbers))
lengths = st.none() | numbers.filter(bool)


@st.composite
def any_fault(draw):
    kind = draw(st.sampled_from(KINDS))
    nodes = draw(st.permutations(range(4)))
    cut = draw(st.integers(1, 3))
    groups = (tuple(nodes[:cut]), tuple(nodes[cut:])) if kind == "partition" else ((nodes[0],),)
    options = {"slow": (("cpus", "0.5"),), "link": (("rate", "10mbit"), ("loss", "1%"))}.get(kind, ())
    return Fault(kind, groups, *draw(moments), None if kind in AT_ONCE else draw(lengths), options)


@given(any_fault())
def test_what_is_written_is_read_back(fault):
    assert of(str(fault)) == (fault,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "as kill:2@step=20 (a rank), freeze:1@10s+5s"),
        ("explode:1@5s", "as kill:2@step=20"),
        ("kill:1", "as kill:2@step=20 (a rank)"),
        ("kill:1@5", "as kill:2@step=20 (a rank)"),
        ("kill:one@5s", "as kill:2@step=20 (a rank)"),
        ("kill:1@5s;", "as kill:2@step=20"),
        ("kill:8@5s", "the run has ranks 0 to 7"),
        ("slow:4@5s,cpus=0.1", "the run has nodes 0 to 3"),
        ("partition:0|4@5s", "the run has nodes 0 to 3"),
        ("kill:1@step=101", "a step from 1 to 100"),
        ("kill:1@step=0", "a step from 1 to 100"),
        ("kill:1,2@5s", "one target: kill:2@step=20"),
        ("freeze:1@5s+0s", "it has to last"),
        ("kill:1@5s+5s", "kill happens at once"),
        ("restart:1@5s+5s", "restart happens at once"),
        ("partition:0,1@5s", "two groups of nodes or more"),
        ("partition:0,1|1,2@5s", "two groups of nodes or more, each node once"),
        ("slow:1@5s", "as slow:3@step=50+10s,cpus=0.1"),
        ("slow:1@5s,cpus=0.01", "cpus is a number of cores from 0.05"),
        ("slow:1@5s,cpus=fast", "cpus is a number of cores from 0.05"),
        ("slow:1@5s,rate=1mbit", "as slow:3@step=50+10s,cpus=0.1"),
        ("kill:1@5s,cpus=0.1", "as kill:2@step=20"),
        ("link:1@5s", "as link:3@step=10+5s,rate=10mbit"),
        ("link:1@5s,rate=10", "RATE=10: a number with a unit"),
        ("link:1@5s,delay=0ms", "a link that shapes something"),
        ("kill:1@5s; kill:1@5s", "kill:1@5s stands there twice"),
        ("freeze:1@5s; freeze:1@9s+1s", "freeze:1@5s and freeze:1@9s+1s may overlap"),
        ("freeze:1@5s+5s; freeze:1@9s", "may overlap"),
        ("slow:1@step=5+1s,cpus=0.1; slow:1@step=50,cpus=0.1", "may overlap"),
        ("partition:0|1@1s+5s; partition:2|3@2s+1s", "may overlap"),
    ],
)
def test_what_cannot_be_is_one_line(text, says):
    with pytest.raises(SpecError) as error:
        of(text)
    assert str(error.value).startswith("FAULT=")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "kill:1@5s; kill:1@9s",
        "freeze:1@5s+2s; freeze:1@9s+1s; freeze:2@5s+2s",
        "slow:1@5s,cpus=0.1; link:1@5s,rate=1mbit; partition:0|1@5s",
    ],
)
def test_what_does_not_overlap_goes_together(text):
    assert "; ".join(map(str, of(text))) == text


def test_without_steps_any_step_will_do():
    assert of("kill:1@step=5000", RunSpec(nodes=4, batch=8, steps=None, epochs=3))


def test_a_step_that_never_comes_is_refused_once_it_is_known_which_do():
    """EPOCHS: with the data; RESUME: with the checkpoint."""
    faults.in_time(of("kill:1@step=21; kill:2@9s"), 20, 40)
    for number in (20, 41):
        with pytest.raises(SpecError, match=f"FAULT=kill:1@step={number}: the run does steps 21 to 40"):
            faults.in_time(of(f"kill:1@step={number}", RunSpec(nodes=4, batch=8, steps=50)), 20, 40)


def test_none_is_a_value_for_the_lists_of_a_sweep():
    assert of("none") == ()
    place = runtime_of("docker")
    made, refused = cells.product({"FAULT": "none/kill:2@step=20;kill:3@step=20"}, 1, place)
    assert [cell.words["FAULT"] for cell in made] == ["none", "kill:2@step=20;kill:3@step=20"]
    assert refused == []


def test_local_ranks_are_killed_and_frozen_and_nothing_else():
    assert [f.kind for f in Conditions.of({"FAULT": "kill:1@5s; freeze:1@2s+1s"}, SPEC, RUNTIMES["local"]).faults] == [
        "kill",
        "freeze",
    ]
    with pytest.raises(Unavailable, match="target of kill and freeze only; RUNTIME=docker would do"):
        Conditions.of({"FAULT": "kill:1@5s; restart:1@9s"}, SPEC, RUNTIMES["local"])


def told(record: dict) -> str:
    return sentences.of_fault(FaultRecord.model_validate(record))


def test_a_result_tells_its_faults_in_words():
    done = {"fault": "freeze:1@1s+2s", "step": 7, "began_seconds": 1.02, "ended_seconds": 3.1, "error": None}
    assert told(done) == "freeze:1@1s+2s: from 1.0 s to 3.1 s, after step 7"
    late = {"fault": "kill:1@9s", "step": None, "began_seconds": None, "ended_seconds": None, "error": None}
    assert told(late) == "kill:1@9s: the run ended before it was due"
    struck = done | {"fault": "kill:1@1s"}
    assert told(struck) == "kill:1@1s: at 1.0 s, after step 7"  # that its attempt ended is no end of it
    failed = done | {"ended_seconds": None, "error": "could not be brought about: no such node"}
    assert told(failed).endswith("after step 7: could not be brought about: no such node")
    assert words.of_faults(Result.model_validate(begun("x", faults=[done, late]))) == "freeze:1@1s+2s; kill:1@9s"
