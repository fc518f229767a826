"""The server's clock and arithmetic, each worker a thread, against numbers worked out by hand."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trainer.servers.shard import GivenUp, Shard
from trainer.spec import RunSpec


def spec_of(workers: int, **changes) -> RunSpec:
    values = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "batch": 8 * workers} | changes
    return RunSpec(sync="ps_async", model="vgg11", nodes=workers, colocated=1, **values)


def shard_of(workers: int, bound: int, **changes) -> Shard:
    return Shard(torch.zeros(2), spec_of(workers, **changes), bound)


def push(shard: Shard, worker: int, value: float, version: int = 0):
    """Returns the answer and the weights."""
    gradient = torch.full((2,), value)
    return shard.push(worker, gradient, version), gradient.tolist()


def test_lock_step_waits_for_all_and_takes_one_step():
    shard = shard_of(3, bound=0)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda worker: push(shard, worker, worker + 1.0), range(3)))
    assert answers == [((1, 0), [-3.0, -3.0])] * 3  # -lr * (1 + 2 + 3)
    assert (shard.updates, shard.steps) == (1, 1)


def test_lock_step_adds_in_rank_order_whatever_the_order_of_arrival():
    values, found = (1e8, 1.0, -1e8), set()
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        shard = shard_of(3, bound=0)
        threads = []
        for worker in order:
            threads.append(threading.Thread(target=push, args=(shard, worker, values[worker])))
            threads[-1].start()
            while worker not in shard._pushed and shard.updates == 0:
                pass
        for thread in threads:
            thread.join()
        found.add(shard.weights[0].item())
    assert found == {0.0}  # in float32, (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is not


def test_momentum_and_weight_decay_are_sgds():
    plain = torch.full((2,), 2.0)
    optimizer = torch.optim.SGD([plain], 0.5, 0.9, weight_decay=0.1)
    shard = Shard(torch.full((2,), 2.0), spec_of(1, momentum=0.9, weight_decay=0.1), 0)
    for value in (1.0, -2.0, 0.5):
        plain.grad = torch.full((2,), value)
        optimizer.step()
        push(shard, 0, value)
    torch.testing.assert_close(shard.weights, plain)
    torch.testing.assert_close(shard.momentum(), optimizer.state[plain]["momentum_buffer"])
    again = Shard(torch.zeros(2), spec_of(1, momentum=0.9, weight_decay=0.1), 0)
    again.load(shard.weights, shard.momentum())
    push(shard, 0, 1.0)
    push(again, 0, 1.0)
    assert torch.equal(again.weights, shard.weights)


def test_staleness_is_the_updates_between_pull_and_push():
    shard = shard_of(2, bound=10)
    assert push(shard, 0, 1.0)[0] == (1, 0)
    assert push(shard, 0, 1.0, version=1)[0] == (2, 0)
    assert push(shard, 0, 1.0, version=2)[0] == (3, 0)
    assert push(shard, 1, 1.0, version=0)[0] == (4, 3)  # worker 1 still had the weights of the start
    assert push(shard, 0, 1.0, version=3)[0] == (5, 1)


def test_each_asynchronous_push_is_a_step_with_its_share_of_the_weight_decay():
    shard = Shard(torch.full((2,), 4.0), spec_of(2, weight_decay=0.2), 10)
    _, weights = push(shard, 0, 1.0)
    assert weights == pytest.approx([4.0 - 0.5 * (1.0 + 0.2 / 2 * 4.0)] * 2)


@pytest.mark.parametrize("bound", [1, 3])
def test_a_fast_worker_waits_at_the_bound_and_goes_on_when_the_slow_one_pushes(bound):
    shard = shard_of(2, bound)
    answered = []

    def fast():
        for _ in range(bound + 2):
            push(shard, 0, 0.0)
            answered.append(shard.clock[0] - shard.clock[1])

    thread = threading.Thread(target=fast)
    thread.start()
    while shard.updates < bound + 1:  # each is applied as it comes, the last of them is not answered
        pass
    thread.join(0.2)
    assert thread.is_alive()
    assert len(answered) == bound
    push(shard, 1, 0.0)
    push(shard, 1, 0.0)
    thread.join(60)
    assert len(answered) == bound + 2
    assert max(answered) <= bound


@pytest.mark.parametrize("bound", [0, 2])
def test_a_lost_worker_holds_nobody_up_and_is_refused(bound):
    shard = shard_of(2, bound)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lambda: [push(shard, 0, 1.0)[1] for _ in range(bound + 1)][-1])
        while shard.updates < bound and not shard._pushed:
            pass
        assert shard.drop(1, "no sign of life")
        assert not shard.drop(1, "again")
        weights = waits.result(60)
    # In lock-step the one push left stands for the whole batch: half a gradient, scaled up.
    assert weights == ([-1.0] * 2 if bound == 0 else [-0.5 * 3] * 2)
    with pytest.raises(GivenUp, match="no sign of life"):
        push(shard, 1, 1.0)


def test_a_worker_that_waits_when_it_is_given_up_is_told_so():
    shard = shard_of(2, bound=0)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(push, shard, 0, 1.0)
        while not shard._pushed:
            pass
        shard.drop(0, "frozen")
        with pytest.raises(GivenUp, match="frozen"):
            waits.result(60)


def test_who_is_done_holds_nobody_up_and_the_evaluator_is_told_when_all_are():
    shard = shard_of(2, bound=1)
    assert shard.newer(-1)
    shard.done(1)
    for _ in range(5):
        push(shard, 0, 1.0)
    assert shard.newer(4)
    assert shard.pull(torch.zeros(2)) == (5, 5)
    shard.done(0)
    assert not shard.newer(5)
