"""How parameters are divided over servers."""

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.sync.parts import empty, parts, pieces

SHAPES = st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=6)


@given(shapes=SHAPES, count=st.integers(1, 5))
def test_every_element_is_in_exactly_one_part_and_parts_differ_by_no_more_than_a_row(shapes, count):
    tensors = {f"p{i}": torch.zeros(shape) for i, shape in enumerate(shapes)}
    divided = pieces(tensors, count)
    for part in divided:
        for piece in part.values():
            piece += 1
    assert all((tensor == 1).all() for tensor in tensors.values())
    row = max(prod(shape[1:]) for shape in shapes)
    total = sum(tensor.numel() for tensor in tensors.values())
    for part in divided:
        assert abs(len(empty(part)) - total / count) <= row + 1


def test_a_parameter_is_cut_between_rows_and_keeps_its_name_when_whole():
    assert parts({"a": (2, 3), "b": (4, 5), "c": ()}, 2) == [
        {"a": ("a", slice(0, 2)), "b[0:2]": ("b", slice(0, 2))},
        {"b[2:4]": ("b", slice(2, 4)), "c": ("c", slice(0, 1))},
    ]


def test_pieces_are_views_whatever_the_memory_format():
    weight = torch.arange(48.0).view(4, 3, 2, 2).to(memory_format=torch.channels_last)
    first, second = pieces({"w": weight}, 2)
    second["w[2:4]"].zero_()
    assert first["w[0:2]"].sum() == sum(range(24))
    assert weight[2:].count_nonzero() == 0
