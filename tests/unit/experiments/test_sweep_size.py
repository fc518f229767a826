"""A sweep of any size that is read is gone through once."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import UserError
from monitor.experiments import cells, sweep
from monitor.experiments.cells import Cell
from monitor.experiments.sweep import Sweep, Try

TRIES = st.builds(Try, cell=st.integers(0, 3), repeat=st.integers(1, 3), run=st.none(), seconds=st.just(1.0))


@given(st.lists(TRIES), st.lists(TRIES, min_size=1))
def test_the_last_try_is_found_whatever_was_tried_since(first, more):
    job = Sweep(Path("s"), {}, [Cell({}, 3)] * 4, [], list(first))
    for tries in (first, first + more, more):
        if tries is more:
            job.tries = list(more)  # as carry_out does, under the lock
        else:
            job.tries += tries[len(job.tries) :]
        for place in job.order():
            assert job.last(*place) == next((t for t in reversed(tries) if (t.cell, t.repeat) == place), None)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_every_run_of_every_cell_is_in_the_order_once(repeats):
    job = Sweep(Path("s"), {}, [Cell({}, times) for times in repeats])
    order = list(job.order())
    assert len(order) == job.total and set(order) == {(i, r + 1) for i, n in enumerate(repeats) for r in range(n)}
    assert [repeat for _, repeat in order] == sorted(repeat for _, repeat in order)


WORDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), min_size=1)


@given(st.lists(st.builds(Cell, words=WORDS, repeats=st.just(1), group=st.sampled_from(["", "g"]))))
def test_the_texts_of_all_cells_are_those_of_each(among):
    assert cells.texts(among) == [cell.text(among) for cell in among]


@pytest.mark.parametrize("count, repeats", [(1, 100_001), (1001, 100), (3001, 1)])
def test_a_sweep_that_could_not_be_read_again_is_not_begun(tmp_path, count, repeats):
    with pytest.raises(UserError, match=f"{count * repeats} runs of {count} combinations; 100000 of 3000 are the most"):
        Sweep(tmp_path, {}, [Cell({}, repeats)] * count).save()
    assert not list(tmp_path.iterdir())
    Sweep(tmp_path, {}, [Cell({}, 100)] * 1000).save()
    assert sweep.load(tmp_path).total == sweep.MOST_RUNS
