"""Buckets, the ring and batch norm by themselves: pure functions, and ranks as threads of one process."""

import itertools
from queue import SimpleQueue
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trainer.registry import SYNCS, load
from trainer.spec import RunSpec
from trainer.sync import batch_norm
from trainer.sync.all_reduce import AllReduce
from trainer.sync.base import Sync
from trainer.sync.buckets import buckets
from trainer.sync.ring import Ring
from trainer.wire.alone import AloneWire

quick = settings(deadline=None, max_examples=50)


@given(st.lists(st.integers(1, 10**8)), st.floats(0.001, 1000))
def test_buckets_hold_every_gradient_once_in_order_and_are_as_full_as_can_be(sizes, bucket_mb):
    named = {f"w{i}": size for i, size in enumerate(sizes)}
    groups = buckets(named, "bucket", bucket_mb)
    assert [name for group in groups for name in group] == list(named)
    limit = bucket_mb * 10**6
    assert all(len(group) == 1 or sum(named[name] for name in group) <= limit for group in groups)
    for group, following in itertools.pairwise(groups):
        assert sum(named[name] for name in group) + named[following[0]] > limit


def test_tensor_and_flat_are_the_two_ends():
    sizes = {"a": 1, "b": 10**9, "c": 3}
    assert buckets(sizes, "tensor", 25) == [["a"], ["b"], ["c"]]
    assert buckets(sizes, "flat", 25) == [["a", "b", "c"]]
    assert buckets({}, "flat", 25) == []


class ThreadWire(AloneWire):
    """One rank of n threads: messages go through queues and are counted as the wire counts them."""

    def __init__(self, rank: int, queues):
        super().__init__()
        self.rank, self.world_size = rank, len(queues)
        self.queues = queues

    def exchange(self, outgoing, to, incoming, source, what):
        self.queues[to].put((self.rank, what, outgoing.clone()))
        sender, same, tensor = self.queues[self.rank].get(timeout=100)
        assert (sender, same) == (source, what)
        self.count("exchange", outgoing.nbytes, incoming.nbytes)
        return incoming.copy_(tensor)


@quick
@given(st.integers(1, 6), st.integers(1, 20), st.sampled_from([torch.float32, torch.bfloat16]))
def test_the_ring_sums_and_counts_whatever_n_and_the_size(n, elements, dtype):
    queues = [SimpleQueue() for _ in range(n)]
    spec = RunSpec(sync="ring", nodes=n, batch=n, compress="bf16" if dtype == torch.bfloat16 else "none")
    rings = [Ring(ThreadWire(rank, queues), spec) for rank in range(n)]
    tensors = [torch.arange(elements).to(dtype) + rank for rank in range(n)]  # small whole numbers: exact in bf16
    expected = sum(t.float() for t in tensors)
    threads = [Thread(target=ring.all_reduce, args=(t,)) for ring, t in zip(rings, tensors, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ring, tensor in zip(rings, tensors, strict=True):
        assert torch.equal(tensor.float(), expected)
        ring.setup(SimpleNamespace(named_parameters=lambda: [("w", nn.Parameter(torch.zeros(elements)))]))
        assert ring.wire.take_bytes() == ring.step_bytes(4 * elements)


def layers(input_shape):
    kind = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(input_shape)]
    torch.manual_seed(3)
    plain = nn.Sequential(kind(input_shape[1]))
    nn.init.normal_(plain[0].weight)
    nn.init.normal_(plain[0].bias)
    ours = nn.Sequential(kind(input_shape[1]))
    ours.load_state_dict(plain.state_dict())
    batch_norm.synchronise(ours, AloneWire(), 1.0)
    return plain, ours


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5, 2)])
def test_batch_norm_on_one_rank_is_torchs(shape):
    plain, ours = layers(shape)
    assert isinstance(ours[0], batch_norm.SyncBatchNorm)
    assert ours.state_dict().keys() == plain.state_dict().keys()
    for _ in range(2):
        x = 100 + torch.randn(shape)  # a mean far above the deviation: where sums of squares cancel
        x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
        weights = torch.randn(shape)
        (plain(x) * weights).sum().backward()
        (ours(y) * weights).sum().backward()
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-3, atol=1e-4)
        for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-3)
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor)
    plain.eval(), ours.eval()
    torch.testing.assert_close(ours(x), plain(x))


def test_batch_norm_keeps_bf16_and_channels_last():
    _, ours = layers((4, 3, 5, 2))
    x = torch.randn(4, 3, 5, 2, dtype=torch.bfloat16).to(memory_format=torch.channels_last).requires_grad_()
    out = ours(x)
    out.sum().backward()
    assert (out.dtype, x.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_norm_deep_inside_keeps_its_name_and_parameters():
    model = nn.ModuleDict({"block": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))})
    before = dict(model.named_parameters())
    batch_norm.synchronise(model, AloneWire(), 1.0)
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in before.items()}
    assert batch_norm.step_bytes(model, 4) == 2 * 2 * 3 / 4 * 16 * 3


@pytest.mark.parametrize("sync", [AllReduce, Ring])
@pytest.mark.parametrize("compress", [{"compress": "topk", "ratio": 0.2}, {"compress": "powersgd", "compress_rank": 1}])
def test_a_strategy_that_takes_over_the_state_goes_on_as_if_never_stopped(sync, compress, tmp_path):
    name = {AllReduce: "all_reduce", Ring: "ring"}[sync]
    spec = RunSpec(sync=name, nodes=1, batch=4, **compress)

    def synchronised(strategy, seed):
        """The gradients after one step of the strategy."""
        generator = torch.Generator().manual_seed(seed)
        strategy.model.zero_grad()
        strategy.backward(strategy.model(torch.randn(4, 5, generator=generator)).square().mean())
        strategy.synchronise()
        return [p.grad.clone() for p in strategy.model.parameters()]

    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3))
    first, second = sync(AloneWire(), spec), sync(AloneWire(), spec)
    first.setup(model)
    synchronised(first, 1)
    torch.save(first.state(), tmp_path / "state.pt")
    second.setup(model)
    second.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    for seed in (2, 3):
        for mine, other in zip(synchronised(first, seed), synchronised(second, seed), strict=True):
            assert torch.equal(mine, other)
    assert first.state().keys() == second.state().keys() != set()


@pytest.mark.parametrize("name", [name for name, strategy in SYNCS.items() if strategy.place.startswith("trainer.")])
def test_a_strategy_says_whether_its_last_word_changes_the_weights(name):
    strategy = load(SYNCS[name].place)
    assert strategy.finish_changes_weights == (strategy.finish is not Sync.finish)
