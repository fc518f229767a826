"""The model: its size, and that it is the VGG-11 of torchvision in all but the classifier."""

import pytest
import torch
from torch import nn

from trainer.loop import build
from trainer.models.vgg import vgg11
from trainer.registry import DATA, MODELS, load
from trainer.spec import RunSpec


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_what_the_registry_says(name):
    model = load(MODELS[name].place)(10)
    assert sum(p.numel() for p in model.parameters()) == MODELS[name].parameters


def test_vgg11_has_the_parameters_of_the_report():
    assert sum(p.numel() for p in vgg11().parameters()) == 9_231_114


@pytest.mark.parametrize("training", [True, False])
def test_equals_torchvision(training):
    theirs = pytest.importorskip("torchvision").models.vgg11_bn(weights=None).features
    ours = vgg11()
    ours.features.load_state_dict(theirs.state_dict())
    head = nn.Linear(512, 10)
    ours.classifier.load_state_dict(head.state_dict())
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    ours.train(training), theirs.train(training)
    with torch.no_grad():
        expected = head(theirs(images).flatten(1))
        torch.testing.assert_close(ours(images), expected, rtol=1e-4, atol=1e-5)


def test_build_is_the_same_for_the_same_seed_and_channels_last():
    spec = RunSpec(sync="single", nodes=1, seed=3)
    first, again = build(spec, 10), build(spec, 10)
    other = build(RunSpec(sync="single", nodes=1, seed=4), 10)
    convolution = first.features[4].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(convolution, again.features[4].weight)
    assert not torch.equal(convolution, other.features[4].weight)


def test_build_refuses_a_registry_that_tells_another_size(monkeypatch):
    wrong = MODELS["vgg11"].__class__("trainer.models.vgg:vgg11", "", DATA["synthetic"].shape, 1)
    monkeypatch.setitem(MODELS, "vgg11", wrong)
    with pytest.raises(AssertionError, match="9231114 parameters, the registry says 1"):
        build(RunSpec(sync="single", nodes=1), 10)
