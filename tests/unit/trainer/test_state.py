"""The one model that is made of the ranks': what is alike stays to the last bit, what differs becomes the mean."""

import json

import torch
from torch import nn

from trainer.checkpoint.state import digest, merge_states
from trainer.wire.alone import AloneParty, AloneWire


class Others(AloneParty):
    """The party of rank 0, with the other ranks' models."""

    def __init__(self, others):
        super().__init__()
        self.others = others

    def tell_all(self, name, text):
        return [text, *(json.dumps([digest(v) for v in other.state_dict().values()]) for other in self.others)]


class Ranks(AloneWire):
    """The wire of rank 0, with what the other ranks' models hold."""

    def __init__(self, others):
        super().__init__(Others(others))
        self.world_size, self.others = 1 + len(others), others
        self.reduced = 0

    def all_reduce(self, tensor):
        self.reduced += tensor.numel()
        for other in self.others:
            tensor += torch.cat([v.reshape(-1) for v in other.state_dict().values() if v.numel() == 2 and v.sum() != 2])
        return tensor


def norm(mean, var, batches=5) -> nn.Module:
    model = nn.Sequential(nn.BatchNorm2d(2, affine=False))
    model[0].running_mean.copy_(torch.tensor(mean))
    model[0].running_var.copy_(torch.tensor(var))
    model[0].num_batches_tracked.fill_(batches)
    return model


def test_statistics_become_the_mean_and_the_model_keeps_its_own():
    model = norm([1.0, 2.0], [3.0, 4.0])
    wire = Ranks([norm([4.0, 8.0], [0.0, 1.0]), norm([1.0, 2.0], [3.0, 1.0], batches=7)])
    served = merge_states(model, wire)
    assert served["0.running_mean"].tolist() == [2, 4]
    assert served["0.running_var"].tolist() == [2, 2]
    assert served["0.num_batches_tracked"] == 5  # no floating-point value: rank 0's
    assert model[0].running_mean.tolist() == [1, 2]


def test_what_all_ranks_hold_alike_is_not_touched_or_sent():
    third = [0.1, 0.7]  # three times this, divided by three, is not this in float32
    wire = Ranks([norm(third, third), norm(third, third)])
    served = merge_states(norm(third, third), wire)
    assert torch.equal(served["0.running_mean"], torch.tensor(third))
    assert wire.reduced == 0


def test_the_memory_format_stays():
    model = nn.Conv2d(1, 2, 1, bias=False)
    model.weight.data = torch.randn(2, 1, 1, 1).contiguous(memory_format=torch.channels_last)
    other = nn.Conv2d(1, 2, 1, bias=False)
    served = merge_states(model, Ranks([other]))
    assert served["weight"].stride() == model.weight.stride()
    assert torch.allclose(served["weight"], (model.weight + other.weight) / 2)
