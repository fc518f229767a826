"""Batches: what waits goes together, one alone never waits, a full queue refuses, and nobody gets another's answer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serving.batching import Batcher
from serving.errors import Refused

POOL = ThreadPoolExecutor(4)


class Model:
    """Doubles its input once it may; remembers the sizes of its batches."""

    def __init__(self):
        self.sizes, self.may, self.computing = [], threading.Event(), threading.Event()
        self.may.set()

    def __call__(self, images):
        self.computing.set()
        assert self.may.wait(20)
        self.sizes.append(len(images))
        if (images < 0).any():
            raise ZeroDivisionError("oops")
        return images * 2


def batcher(model, workers=1, **how):
    made = Batcher(model, POOL, **{"most": 4, "delay_seconds": 0.01, "capacity": 8, "observe": lambda *_: None, **how})
    made.scale(workers)
    return made


def run(scenario):
    """The scenario on an event loop, which must end by itself."""
    return asyncio.run(asyncio.wait_for(scenario(), 30))


async def hold(model, made, value=1):
    """Have the worker compute one request, and hold it there: what comes now has to wait."""
    model.may.clear()
    model.computing.clear()
    first = asyncio.create_task(made(np.full((1, 1), value)))
    await asyncio.get_running_loop().run_in_executor(None, model.computing.wait, 20)
    return first


def ask(made, values):
    return [asyncio.create_task(made(np.full((1, 1), value))) for value in values]


def test_what_waits_goes_together_up_to_the_most_and_everyone_gets_his_own():
    async def scenario():
        model = Model()
        made = batcher(model)
        first = await hold(model, made)
        rest = ask(made, range(10, 17))
        await asyncio.sleep(0)
        assert len(made) == 7
        model.may.set()
        answers = await asyncio.gather(first, *rest)
        made.scale(0)
        return model.sizes, [int(answer[0, 0]) for answer in answers]

    sizes, answers = run(scenario)
    assert sizes == [1, 4, 3] and answers == [2, *range(20, 34, 2)]


def test_one_client_alone_never_waits_for_others():
    async def scenario():
        model = Model()
        made = batcher(model, delay_seconds=1000)
        for _ in range(5):
            await made(np.ones((1, 1)))
        return model.sizes

    assert run(scenario) == [1] * 5


def test_many_clients_find_each_other_and_are_held_back_no_longer_than_said():
    async def scenario():
        model = Model()
        made = batcher(model, most=3, delay_seconds=1000)
        first = await hold(model, made)
        rest = ask(made, range(3))
        await asyncio.sleep(0)
        model.may.set()
        await asyncio.gather(first, *rest)
        late = ask(made, range(2))  # the last batch had 3: these are held back until there are as many
        await asyncio.sleep(0.05)
        assert model.sizes == [1, 3] and len(made) == 2
        await asyncio.gather(*late, *ask(made, [9]))
        assert model.sizes == [1, 3, 3]
        made.delay_seconds = 0.02
        await asyncio.gather(*ask(made, range(2)))  # no third comes
        return model.sizes

    assert run(scenario) == [1, 3, 3, 2]


def test_requests_of_several_images_are_not_cut():
    async def scenario():
        model = Model()
        made = batcher(model)
        first = await hold(model, made)
        rest = [asyncio.create_task(made(np.full((n, 1), n))) for n in (3, 2, 2, 4)]
        await asyncio.sleep(0)
        model.may.set()
        answers = await asyncio.gather(first, *rest)
        return model.sizes, [(len(a), int(a.max())) for a in answers]

    sizes, answers = run(scenario)
    assert sizes == [1, 3, 4, 4] and answers == [(1, 2), (3, 6), (2, 4), (2, 4), (4, 8)]


def test_a_full_queue_refuses_at_once():
    async def scenario():
        model = Model()
        made = batcher(model, capacity=2)
        first = await hold(model, made)
        rest = ask(made, range(2))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="2 requests are waiting already") as refused:
            await made(np.ones((1, 1)))
        assert refused.value.status == 503 and refused.value.headers == {"Retry-After": "1"}
        model.may.set()
        await asyncio.gather(first, *rest)
        await made(np.ones((1, 1)))

    run(scenario)


def test_an_error_of_the_model_reaches_all_of_its_batch_and_no_other():
    async def scenario():
        made = batcher(Model())
        with pytest.raises(ZeroDivisionError):
            await made(np.full((1, 1), -1))
        assert (await made(np.ones((1, 1))))[0, 0] == 2

    run(scenario)


def test_who_has_gone_takes_no_room_in_a_batch():
    async def scenario():
        model = Model()
        made = batcher(model)
        first = await hold(model, made)
        gone, there = ask(made, [5, 6])
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        model.may.set()
        await asyncio.gather(first, there)
        return model.sizes

    assert run(scenario) == [1, 1]


def test_who_has_gone_takes_no_room_in_the_queue():
    async def scenario():
        model = Model()
        made = batcher(model, capacity=2)
        first = await hold(model, made)
        for task in (gone := ask(made, [5, 6])):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        there = ask(made, [7, 8])
        await asyncio.sleep(0)
        assert len(made) == 2
        model.may.set()
        await asyncio.gather(first, *there)
        return model.sizes

    assert run(scenario) == [1, 2]


def test_workers_come_and_go():
    async def scenario():
        model = Model()
        made = batcher(model, workers=0)
        with pytest.raises(Refused, match="no workers") as refused:
            await made(np.ones((1, 1)))
        assert refused.value.status == 503
        made.scale(2)
        first = await hold(model, made)
        model.computing.clear()
        second = asyncio.create_task(made(np.ones((1, 1))))
        assert await asyncio.get_running_loop().run_in_executor(None, model.computing.wait, 20), "both compute at once"
        waiting = asyncio.create_task(made(np.ones((1, 1))))
        await asyncio.sleep(0)
        made.scale(0)
        with pytest.raises(Refused, match="taken away"):
            await waiting
        model.may.set()
        assert [int(a[0, 0]) for a in await asyncio.gather(first, second)] == [2, 2], "what is computed is answered"
        made.scale(1)
        assert (await made(np.ones((1, 1))))[0, 0] == 2

    run(scenario)
