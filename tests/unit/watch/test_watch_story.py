"""What the live page is told of a run: its steps, marks, figures and lines, from events and rows of known contents."""

import json

import pytest
from watched import SECONDS, ZERO, Watched, fault, lines, ready, row, step

from monitor.watch import story as story_module
from monitor.watch.story import MOST_LINES, MOST_ROWS, MOST_STEPS, Story
from trainer import events


@pytest.fixture
def story(tmp_path):
    return Story(Watched(tmp_path).facts)


def tell(story, *said):
    for line in lines(*said):
        story.take(line)


def items(story, kind):
    return [item[1:] for item in story.since(None)[1] if item[0] == kind]


def test_a_step_is_shown_once_all_workers_have_done_it(story):
    tell(story, ready(0, 3), ready(1, 3), step(0, 1, loss=1.0), step(0, 2))
    assert items(story, "step") == []
    tell(story, step(1, 1, loss=3.0, samples=12, seconds=SECONDS | {"sync": 0.3}))
    assert items(story, "step") == [[1, 2.5, 0.1, 0.1, 0.1, pytest.approx(0.2), 0.1]], (
        "weighted by samples; mean phases"
    )
    tell(story, step(1, 2, loss=None))
    assert items(story, "step")[1][:2] == [2, None]


def test_a_worker_that_does_no_more_is_not_waited_for(story):
    tell(story, ready(0, 9), ready(1, 9), step(0, 1), step(1, 1), step(0, 2), step(0, 3, when=ZERO + 11.5))
    assert [number for number, *_ in items(story, "step")] == [1], "it may be slow"
    tell(story, step(0, 4, when=ZERO + 13))
    assert [number for number, *_ in items(story, "step")] == [1, 2, 3, 4]
    tell(story, step(1, 2, when=ZERO + 14))
    assert [number for number, *_ in items(story, "step")] == [1, 2, 3, 4], "it comes late: its line is drawn"
    tell(story, step(1, 3, when=ZERO + 14), step(1, 5, when=ZERO + 14.5), step(0, 5, when=ZERO + 15, loss=3.0))
    assert items(story, "step")[-1][:2] == [5, 2.0], "it is back"


def test_slow_steps_do_not_make_a_worker_look_lost(story):
    slow = {"step_seconds": 60.0}
    tell(story, step(0, 1, when=ZERO + 60, **slow), step(1, 1, when=ZERO + 60, **slow), step(0, 2, ZERO + 120, **slow))
    assert [number for number, *_ in items(story, "step")] == [1]


def test_of_a_long_run_steps_are_left_out_and_not_parsed(story, monkeypatch):
    steps = 2 * MOST_STEPS + 1
    tell(story, ready(0, steps), ready(1, steps))
    parsed = []
    monkeypatch.setattr(
        story_module.events, "parse", lambda line, parse=events.parse: parsed.append(line) or parse(line)
    )
    for number in range(1, 16):
        tell(story, step(0, number), step(1, number))
    assert [number for number, *_ in items(story, "step")] == [1, 3, 6, 9, 12, 15]
    assert len(parsed) == 12
    tell(story, step(0, steps - 1), step(1, steps - 1))
    assert [cells[4] for cells in story.now()["ranks"]] == [steps - 1] * 2
    tell(story, step(0, steps), step(1, steps))
    assert items(story, "step")[-1][0] == steps


def test_the_way_a_step_is_written_is_the_one_that_is_looked_for():
    (line,) = lines(step(12, 34))
    assert story_module._STEP.match(line).groups() == ("12", "34")


def test_a_resumed_run_begins_with_its_first_step(story):
    tell(
        story,
        ready(0, 50, steps_before=40),
        ready(1, 50, steps_before=40),
        step(0, 41, ZERO + 1),
        step(1, 41, ZERO + 1),
    )
    assert [number for number, *_ in items(story, "step")] == [41]
    assert story.now()["text"] == "step 41 of 50, 0.500 s a step, about 4 s left"


def test_a_restart_takes_back_what_was_lost_and_tells_anew(story):
    tell(story, ready(0, 9), ready(1, 9), *(step(rank, number) for number in (1, 2, 3) for rank in (0, 1)))
    tell(story, events.Monitored(rank=0, time=ZERO + 2, step=3, samples=2, loss=1.5, accuracy=0.5))
    _, _, place = story.since(None)
    facts = {"attempt": 1, "kind": "killed", "from_step": 1, "lost_steps": 2, "lost_seconds": 1.0}
    tell(story, events.Restart(rank=1, time=ZERO + 3, message="rank 1 was killed", **facts))
    anew, told, _ = story.since(place)
    assert anew and [item[:2] for item in told if item[0] in ("step", "score")] == [["step", 1]]
    assert items(story, "mark") == [[0, "restart", False, 1, 3.0]]
    assert items(story, "line")[-1] == [
        3.0,
        "restart 1: restarted from step 1: rank 1 was killed (2 steps and 1.0 s lost)",
    ]
    tell(story, *(step(rank, 2, ZERO + 9, loss=7.0) for rank in (0, 1)))
    assert items(story, "step")[-1][:2] == [2, 7.0]


def test_faults_are_marked_from_the_moment_they_strike_to_their_end(story):
    tell(story, ready(0, 9), fault("freeze:1@step=2+5s", "begin", 2, ZERO + 2.25))
    tell(story, fault("freeze:1@step=2+5s", "end", 3, ZERO + 7.5), fault("kill:0@9s", "begin", 4, ZERO + 9))
    tell(story, fault("kill:0@9s", "end", 4, ZERO + 9))
    assert items(story, "mark") == [[0, "freeze:1", True, 2, 2.0], [1, "kill:0", False, 4, 8.75]]
    assert items(story, "over") == [[0, 3, 7.5]], "what happens at once has no end"
    assert [text for _, text in items(story, "line")] == [
        "fault freeze:1@step=2+5s begins after step 2",
        "fault freeze:1@step=2+5s ends after step 3",
        "fault kill:0@9s begins after step 4",
    ]


def test_a_fault_that_could_not_be_done_says_why(story):
    tell(story, fault("kill:0@9s", "begin", 4, ZERO, error="could not be brought about: rank 0 had ended by then"))
    assert items(story, "line")[0][1].endswith("after step 4: could not be brought about: rank 0 had ended by then")


def test_figures_of_nodes_are_growth_per_second_and_gaps_stay_gaps(story):
    story.take_rows([row("local-0", 0), row("local-1", 0.5), row("local-0", 1), row("local-0", 1.1), row("local-0", 6)])
    assert items(story, "row") == [
        [0, 0.0, None, 100, None, None],
        [1, 0.5, None, 100, None, None],
        [0, 1.0, 50, 100, 2, 1],
        [0, 6.0, None, 100, None, None],  # 5 s is a gap; what came 0.1 s after another one is left out
    ]
    story.take_rows([row("trainer-7", 7)])
    assert len(items(story, "row")) == 4, "another run's node"


def test_a_counter_that_falls_is_a_node_that_was_started_again(story):
    story.take_rows([row("local-0", 0), row("local-0", 1, cpu_seconds_total=0.0, memory_working_set_bytes=None)])
    assert items(story, "row")[1] == [0, 1.0, None, None, 2, 1]


def test_of_a_long_run_every_second_row_goes_and_rates_stay_right(story):
    story.take_rows([row("local-0", second) for second in range(MOST_ROWS)])
    _, _, place = story.since(None)
    story.take_rows([row("local-0", MOST_ROWS)])
    anew, told, _ = story.since(place)
    assert anew and len(told) == MOST_ROWS // 2 + 1
    assert told[1] == ["row", 0, 2.0, 50, 100, 2, 1]
    assert story.head()["gap"] == 4.0
    story.take_rows([row("local-0", MOST_ROWS + 1), row("local-0", MOST_ROWS + 2)])
    assert [item[1] for item in items(story, "row")][-1] == MOST_ROWS + 2
    assert len(items(story, "row")) == MOST_ROWS // 2 + 2


def test_a_reader_is_told_what_it_does_not_have(story):
    anew, told, first = story.since(None)
    assert anew and told == []
    tell(story, ready(0, 9), step(0, 1), step(1, 1))
    anew, told, second = story.since(first)
    assert not anew and [item[0] for item in told] == ["step"]
    assert story.since(second) == (False, [], second)
    for place in [("other-0", 1), (story.telling, 99), (story.telling, -1)]:
        assert story.since(place)[0], "a place of another process, or one that cannot be"


def test_the_first_step_begins_before_it_ends(story):
    tell(story, ready(0, 9, when=ZERO), step(0, 1, when=ZERO + 2.0))
    assert story.now()["zero"] == 1.5


def test_what_is_said_is_bounded(story):
    tell(story, *(events.Warning(rank=0, time=ZERO, message=f"w{number}") for number in range(MOST_LINES + 50)))
    texts = [text for _, text in items(story, "line")]
    assert len(texts) == MOST_LINES + 1 and texts[-1] == "more was said; events.jsonl has all of it"


@pytest.mark.parametrize(
    "line", ["", "x", "{}", "[" * 5000, '{"event": "step"}', '{"event": "step", "rank": 0, "time": 1, ']
)
def test_lines_that_are_no_events_are_passed_over(story, line):
    story.take(line)
    assert story.since(None)[1] == []


def test_a_step_of_a_rank_that_the_run_does_not_have_harms_nothing(story):
    tell(story, ready(0, 5000), step(9, 2), step(7, 5))
    json.dumps([story.since(None)[1], story.now(), story.head()], allow_nan=False)


@pytest.mark.parametrize(
    ("said", "text", "states"),
    [
        ([], "starting", ["starting", "starting"]),
        ([ready(0, 9)], "starting", ["ready", "starting"]),
        ([ready(0, 9), ready(1, 9)], "ready", ["ready", "ready"]),
        ([ready(0, 9), step(0, 1)], "step 1 of 9, 0.500 s a step, about 4 s left", ["training", "starting"]),
        ([ready(0, 1), step(0, 1)], "step 1 of 1", ["training", "starting"]),
        (
            [
                events.Failed(rank=1, kind="own", message="m"),
                events.Exited(rank=1, code=1, signal=None, out_of_memory=False),
            ],
            "starting",
            ["starting", "failed"],
        ),
        ([events.Exited(rank=0, code=None, signal="SIGKILL", out_of_memory=False)], "starting", ["ended", "starting"]),
    ],
)
def test_how_far_the_run_is(story, said, text, states):
    tell(story, *said)
    now = story.now()
    assert (now["text"], [cells[3] for cells in now["ranks"]]) == (text, states)


def test_evaluation_is_told(story):
    done = {"seconds": 1.0, "distinct_samples": 1, "synchronisations": 1}
    done |= {"interface_sent_bytes": 0, "interface_received_bytes": 0}
    tell(story, ready(0, 1), step(0, 1), *(events.Trained(rank=rank, time=ZERO, **done) for rank in (0, 1)))
    assert story.now()["text"] == "evaluating on the test set"
    score = {"samples": 2, "loss": 0.5, "accuracy": 0.75, "confusion_matrix": [], "classes": [], "seconds": 1.0}
    tell(story, events.Evaluated(rank=0, time=ZERO, **score))
    assert items(story, "score") == [[1, 0.5]]
    assert items(story, "line")[-1][1] == "test set after the last step: accuracy 75.0 %"
