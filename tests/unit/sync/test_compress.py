"""What is sent plus what is kept is the gradient; sums and messages are what the formulas say. No processes."""

import math
from threading import Barrier, Thread

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer.compress.base import compressor
from trainer.compress.powersgd import orthonormal
from trainer.compress.topk import pack, unpack
from trainer.flat import flatten, split, unflatten
from trainer.registry import COMPRESSORS
from trainer.spec import RunSpec

shapes = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=5)
worlds = st.integers(1, 5)
quick = settings(deadline=None, max_examples=40)


def spec_of(name: str, ratio: float = 0.01, rank: int = 2) -> RunSpec:
    own = {"topk": {"ratio": ratio}, "powersgd": {"compress_rank": rank}}.get(name, {})
    return RunSpec(sync="all_reduce", compress=name, **own)


def draw(shapes, seed: int, channels_last: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {str(i): torch.randn(shape, generator=generator) for i, shape in enumerate(shapes)}
    if channels_last:
        tensors = {k: t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for k, t in tensors.items()}
    return tensors


class World:
    """n ranks as threads of one process, with collectives of their own."""

    def __init__(self, compressors):
        self.compressors = compressors
        self.sums, self.gathered = [], []  # of rank 0, as Traffic has them

    def reduce(self, gradients: list[dict]) -> None:
        n = len(gradients)
        barrier, place, errors = Barrier(n), [None] * n, []

        def one(rank):
            def gather(tensor):
                if rank == 0:
                    self.gathered.append(tensor.nbytes)
                return share(tensor)

            def total(tensor):
                if rank == 0:
                    self.sums.append((tensor.numel(), tensor.element_size()))
                return tensor.copy_(torch.stack(share(tensor)).sum(0))

            def share(tensor):
                place[rank] = tensor.clone()
                barrier.wait(100)
                everyone = [t.clone() for t in place]
                barrier.wait(100)
                return everyone

            try:
                self.compressors[rank].reduce(gradients[rank], total, gather)
            except BaseException as error:
                errors.append(error)
                barrier.abort()

        threads = [Thread(target=one, args=(rank,)) for rank in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def sum_of(gradients: list[dict]) -> dict:
    return {name: sum(g[name] for g in gradients) for name in gradients[0]}


def copies(gradients: dict) -> dict:
    return {name: g.clone(memory_format=torch.preserve_format) for name, g in gradients.items()}


@quick
@given(shapes, st.integers(0, 99), st.booleans())
def test_flattening_and_back_is_the_identity_in_logical_order(shapes, seed, channels_last):
    tensors = draw(shapes, seed, channels_last)
    flat = flatten(tensors.values())
    assert torch.equal(flat, torch.cat([t.reshape(-1) for t in tensors.values()]))
    copy = {name: torch.empty_like(t) for name, t in tensors.items()}
    unflatten(flat, copy.values())
    assert all(torch.equal(copy[name], t) for name, t in tensors.items())


@quick
@example([[1, 1, 1, 2]], 1, 0, "none", True)  # dense in both memory formats: summed in place
@given(shapes, worlds, st.integers(0, 99), st.sampled_from(sorted(COMPRESSORS)), st.booleans())
def test_without_loss_the_sum_is_the_sum_at_every_step(shapes, n, seed, name, channels_last):
    spec = spec_of(name, ratio=1.0, rank=216)
    world = World([compressor(spec) for _ in range(n)])
    for step in range(3):
        gradients = [draw(shapes, 1000 * seed + 10 * rank + step, channels_last) for rank in range(n)]
        expected = sum_of(gradients)
        world.reduce(gradients)
        near = {"rtol": 0.01 * n, "atol": 0.02 * n} if name == "bf16" else {"rtol": 1e-4, "atol": 1e-4}
        for mine in gradients:
            for key, tensor in expected.items():
                torch.testing.assert_close(mine[key], tensor, **near)
                assert torch.equal(mine[key], gradients[0][key])


@quick
@given(shapes, worlds, st.floats(0.01, 1), st.integers(1, 4), st.sampled_from(["topk", "powersgd"]))
def test_what_all_sent_and_what_all_kept_is_the_gradient_at_every_step(shapes, n, ratio, rank, name):
    spec = spec_of(name, ratio=ratio, rank=rank)
    world = World([compressor(spec) for _ in range(n)])
    due = {key: torch.zeros_like(t) for key, t in draw(shapes, 0).items()}  # given to the compressors, not yet sent
    for step in range(4):
        gradients = [draw(shapes, 10 * step + r) for r in range(n)]
        due = {key: due[key] + tensor for key, tensor in sum_of(gradients).items()}
        world.reduce(gradients)
        due = {key: due[key] - tensor for key, tensor in gradients[0].items()}
        kept = [kept_by(c, gradients[0]) for c in world.compressors]
        for key, tensor in due.items():
            torch.testing.assert_close(sum(k[key] for k in kept), tensor, rtol=1e-3, atol=1e-4)


def kept_by(compressor, gradients: dict) -> dict:
    """What a compressor keeps, in the names and shapes of the gradients."""
    if compressor.spec.compress == "topk":
        (flat,) = compressor.kept.values()
        return dict(zip(gradients, split(flat, gradients.values()), strict=True))
    return {name: compressor.kept.get(name, torch.zeros(g.shape)).view(g.shape) for name, g in gradients.items()}


@quick
@given(shapes, st.floats(0.01, 1), st.integers(0, 99))
def test_topk_sends_the_largest_and_keeps_the_others_exactly(shapes, ratio, seed):
    one = compressor(spec_of("topk", ratio=ratio))
    given, sent = draw(shapes, seed), draw(shapes, seed)
    one.decode(one.encode(copies(given)), sent)
    (kept,) = one.kept.values()
    flat, out = flatten(given.values()), flatten(sent.values())
    assert torch.equal(out + kept, flat)
    assert torch.equal(out * kept, torch.zeros_like(flat))
    assert int((out != 0).sum()) == math.ceil(ratio * len(flat))
    assert out[out != 0].abs().min() >= kept.abs().max()
    # What was kept comes with the next gradient.
    one.decode(one.encode({name: torch.zeros_like(g) for name, g in given.items()}), sent)
    (kept_then,) = one.kept.values()
    assert torch.equal(flatten(sent.values()) + kept_then, kept)


@quick
@given(shapes, st.integers(1, 4), st.integers(0, 99))
def test_powersgd_sends_a_projection_and_keeps_the_rest(shapes, rank, seed):
    one = compressor(spec_of("powersgd", rank=rank))
    given, sent = draw(shapes, seed), draw(shapes, seed)
    one.decode(one.encode(copies(given)), sent)
    for name, gradient in given.items():
        if gradient.dim() == 1:
            assert torch.equal(sent[name], gradient)
            assert name not in one.kept
        else:
            kept = one.kept[name].view(gradient.shape)
            torch.testing.assert_close(sent[name] + kept, gradient, rtol=1e-4, atol=1e-5)
            assert torch.linalg.matrix_rank(sent[name].reshape(len(gradient), -1), rtol=1e-4) <= rank
            assert (sent[name] * kept).sum().abs() < 1e-3  # a projection: what is sent and the rest are orthogonal


def test_powersgd_reproduces_a_gradient_of_its_rank_and_finds_the_largest_directions():
    one = compressor(spec_of("powersgd", rank=3))
    generator = torch.Generator().manual_seed(1)
    low = torch.randn(40, 3, generator=generator) @ torch.randn(3, 60, generator=generator)
    sent = {"w": torch.empty(40, 60)}
    one.decode(one.encode({"w": low.clone()}), sent)
    torch.testing.assert_close(sent["w"], low, rtol=1e-3, atol=1e-3)

    # Warm start: with the same matrix again and again, its best approximation of rank 3 is approached.
    full = torch.randn(40, 60, generator=generator)
    u, s, v = torch.linalg.svd(full)
    best = (full - u[:, :3] * s[:3] @ v[:3]).norm()
    one = compressor(spec_of("powersgd", rank=3))
    errors = []
    for _ in range(60):
        one.kept.clear()
        one.decode(one.encode({"w": full.clone()}), sent)
        errors.append((full - sent["w"]).norm())
    assert errors[0] > 1.05 * best
    assert errors[-1] < 1.01 * best


@quick
@given(shapes, worlds, st.floats(0.01, 1), st.integers(1, 4), st.sampled_from(sorted(COMPRESSORS)))
def test_traffic_and_messages_are_what_the_formulas_say(shapes, n, ratio, rank, name):
    spec = spec_of(name, ratio=ratio, rank=rank)
    gradients = draw(shapes, 0)
    world = World([compressor(spec) for _ in range(n)])
    traffic = world.compressors[0].traffic(gradients)
    world.reduce([copies(gradients) for _ in range(n)])
    assert (tuple(world.sums), tuple(world.gathered)) == (traffic.sums, traffic.gathered)

    elements = sum(g.numel() for g in gradients.values())
    sides = [(len(g), g[0].numel()) for g in gradients.values() if g.dim() > 1]
    expected = {
        "none": 4 * elements,
        "bf16": 2 * elements,
        "topk": 8 * math.ceil(ratio * elements),
        "powersgd": 4 * sum((m + k) * min(rank, m, k) for m, k in sides)
        + 4 * sum(len(g) for g in gradients.values() if g.dim() == 1),
    }[name]
    assert sum(count * size for count, size in traffic.sums) + sum(traffic.gathered) == expected
    one = compressor(spec)
    message, empty = one.encode(copies(gradients)), one.message(gradients)
    assert (message.nbytes, message.dtype, message.shape) == (expected, empty.dtype, empty.shape)


@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_state_taken_over_goes_on_as_if_never_stopped(name, tmp_path):
    spec = spec_of(name, ratio=0.2, rank=2)
    shapes = [[5, 4, 3], [7]]
    first = compressor(spec)
    first.encode(draw(shapes, 1))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = compressor(spec)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for step in (2, 3):
        assert torch.equal(first.encode(draw(shapes, step)), second.encode(draw(shapes, step)))
    assert first.state_dict().keys() == second.state_dict().keys()


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(width=32, allow_nan=False)), min_size=1))
def test_indices_and_values_come_out_as_they_went_in(pairs):
    indices, values = torch.tensor([i for i, _ in pairs]), torch.tensor([v for _, v in pairs], dtype=torch.float32)
    got = unpack(pack(indices, values))
    assert torch.equal(got[0], indices)
    assert torch.equal(got[1].view(torch.int32), values.view(torch.int32))


def test_orthonormal_completes_what_is_missing():
    column = torch.arange(1.0, 6).view(5, 1)
    q = orthonormal(column.repeat(1, 3))
    torch.testing.assert_close(q.T @ q, torch.eye(3), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(q @ (q.T @ column), column, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(orthonormal(torch.zeros(5, 2))).all()
