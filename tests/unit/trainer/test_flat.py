"""Many tensors as one."""

import pytest
import torch

from trainer.flat import flatten, split, unflatten


def test_parameters_are_flattened_and_written_without_recording_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    flat = flatten(model.parameters())
    assert flat.tolist() == [value for p in model.parameters() for value in p.flatten().tolist()]
    assert not flat.requires_grad
    unflatten(flat + 1, model.parameters())
    assert torch.equal(flatten(model.parameters()), flat + 1)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_the_result_is_a_copy_in_the_first_tensor_s_type_or_the_one_named():
    tensor = torch.ones(2, 2)
    flat = flatten([tensor])
    flat.zero_()
    assert tensor.sum() == 4
    assert flatten([tensor.bfloat16(), tensor]).dtype == torch.bfloat16
    assert flatten([tensor], torch.float64).dtype == torch.float64
    assert flatten([]).shape == (0,)


def test_parts_are_views_and_a_part_that_is_the_tensor_s_own_memory_stays():
    flat = torch.arange(6.0)
    parts = split(flat, [torch.empty(2, 2), torch.empty(2)])
    assert [tuple(part.shape) for part in parts] == [(2, 2), (2,)]
    parts[1].zero_()
    assert flat.tolist() == [0, 1, 2, 3, 0, 0]
    unflatten(flat, parts)
    assert flat.tolist() == [0, 1, 2, 3, 0, 0]


def test_sizes_that_do_not_add_up_are_refused():
    with pytest.raises(RuntimeError):
        split(torch.empty(5), [torch.empty(4)])
