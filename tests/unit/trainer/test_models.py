"""The models: their sizes, and that each computes what an independent construction with its weights computes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trainer.models.alexnet import alexnet
from trainer.models.build import build
from trainer.models.cnn import cnn3, cnn5
from trainer.models.logistic import logistic
from trainer.registry import COLOUR, DATA, GREY, MODELS, load
from trainer.spec import RunSpec, shape_text


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small work on a machine that may be busy: threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


REAL = {name: model for name, model in MODELS.items() if model.place.startswith("trainer.")}  # tests/local adds more
PAIRS = [(name, shape) for name, model in REAL.items() for shape in model.shapes]


def images_of(shape, count=4):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_parameters_are_what_the_registry_says(name, shape):
    with torch.device("meta"):
        model = load(MODELS[name].place)(10, shape)
    assert sum(p.numel() for p in model.parameters()) == MODELS[name].parameters[shape]


def conv(inputs, outputs, kernel):
    return outputs * inputs * kernel * kernel + outputs


def linear(inputs, outputs):
    return (inputs + 1) * outputs


def vgg(*widths):
    """Convolutions with bias, then a scale and a shift a channel; one linear layer."""
    return sum(conv(a, b, 3) + 2 * b for a, b in zip((3, *widths), widths, strict=False)) + linear(512, 10)


HAND = {
    ("vgg11", COLOUR): vgg(64, 128, 256, 256, 512, 512, 512, 512),
    ("vgg13", COLOUR): vgg(64, 64, 128, 128, 256, 256, 512, 512, 512, 512),
    ("vgg16", COLOUR): vgg(64, 64, 128, 128, *[256] * 3, *[512] * 6),
    ("vgg19", COLOUR): vgg(64, 64, 128, 128, *[256] * 4, *[512] * 8),
    ("alexnet", COLOUR): conv(3, 64, 11) + conv(64, 192, 5) + conv(192, 384, 3) + conv(384, 256, 3) + conv(256, 256, 3)
    + linear(9216, 4096) + linear(4096, 4096) + linear(4096, 10),
    ("cnn3", COLOUR): conv(3, 6, 5) + conv(6, 16, 5) + linear(400, 64) + linear(64, 10),
    ("cnn5", GREY): conv(1, 10, 5) + conv(10, 20, 5) + linear(80, 50) + linear(50, 10),
    ("logistic", GREY): linear(784, 10),
    ("logistic", COLOUR): linear(3072, 10),
}  # fmt: skip


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_parameters_by_hand(name, shape):
    assert HAND[name, shape] == MODELS[name].parameters[shape]


@pytest.mark.parametrize("name", REAL)
def test_parameters_as_the_readme_states_them(name):
    readme = (Path(__file__).parents[3] / "README.md").read_text().splitlines()
    (row,) = [line for line in readme if line.startswith(f"| `{name}` |")]
    *_, shapes, counts, _ = [cell.strip() for cell in row.split("|")]
    stated = dict(zip(shapes.split(" or "), counts.split(" or "), strict=True))
    assert stated == {shape_text(shape): f"{count:,}" for shape, count in MODELS[name].parameters.items()}


def test_sizes_of_reports_and_papers():
    assert MODELS["vgg11"].parameters[COLOUR] == 9_231_114  # printed by report R1
    assert MODELS["alexnet"].parameters[COLOUR] == 57_044_810
    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        theirs = torchvision.models.alexnet(num_classes=10)
        ours = alexnet()
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [(n, p.shape) for n, p in theirs.named_parameters()]


@pytest.mark.parametrize("name", ["vgg11", "vgg13", "vgg16", "vgg19"])
def test_vgg_equals_torchvision(name):
    models = pytest.importorskip("torchvision").models.vgg
    theirs = models.make_layers(models.cfgs[dict(vgg11="A", vgg13="B", vgg16="D", vgg19="E")[name]], batch_norm=True)
    ours = load(MODELS[name].place)()
    ours.features.load_state_dict(theirs.state_dict())
    head = nn.Linear(512, 10)
    ours.classifier.load_state_dict(head.state_dict())
    images = images_of(COLOUR)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        with torch.no_grad():
            torch.testing.assert_close(ours(images), head(theirs(images).flatten(1)), rtol=1e-4, atol=1e-4)


def test_alexnet_forward():
    """By functions of the bare weights; and dropout before both hidden layers while training."""
    torch.manual_seed(1)
    model, images = alexnet(), images_of(COLOUR, 2)
    (w1, b1), (w2, b2), (w3, b3), (w4, b4), (w5, b5), (v1, c1), (v2, c2), (v3, c3) = zip(
        *[iter(model.parameters())] * 2, strict=True
    )
    with torch.no_grad():
        x = F.max_pool2d(F.relu(F.conv2d(images, w1, b1, padding=3)), 3, 2)
        assert x.shape == (2, 64, 13, 13)
        x = F.max_pool2d(F.relu(F.conv2d(x, w2, b2, padding=2)), 3, 2)
        x = F.relu(F.conv2d(x, w3, b3, padding=1))
        x = F.relu(F.conv2d(x, w4, b4, padding=1))
        x = F.relu(F.conv2d(x, w5, b5, padding=1)).reshape(2, 256 * 36)
        expected = F.linear(F.relu(F.linear(F.relu(F.linear(x, v1, c1)), v2, c2)), v3, c3)
        torch.testing.assert_close(model.eval()(images), expected, rtol=1e-4, atol=1e-5)
        torch.manual_seed(5)
        trained = model.train()(images)
        torch.manual_seed(5)
        hidden = F.relu(F.linear(x * keep(x), v1, c1))
        expected = F.linear(F.relu(F.linear(hidden * keep(hidden), v2, c2)), v3, c3)
        torch.testing.assert_close(trained, expected, rtol=1e-4, atol=1e-5)


def keep(x):
    """What dropout of one half multiplies x with: 0 or 2."""
    return F.dropout(torch.ones_like(x), 0.5)


def test_cnn3_forward():
    torch.manual_seed(1)
    model, images = cnn3(), images_of(COLOUR)
    w1, b1, w2, b2, v1, c1, v2, c2 = model.parameters()
    assert (w1.shape, w2.shape, v1.shape) == ((6, 3, 5, 5), (16, 6, 5, 5), (64, 400))
    x = F.max_pool2d(F.relu(F.conv2d(images, w1, b1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, w2, b2)), 2).reshape(4, 400)
    expected = F.relu(x @ v1.T + c1) @ v2.T + c2
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_cnn5_forward(training):
    """The report's order: conv, max-pool, ReLU, conv, max-pool, ReLU, dropout, max-pool, linear, ReLU, linear."""
    torch.manual_seed(1)
    model, images = cnn5().train(training), images_of(GREY)
    w1, b1, w2, b2, v1, c1, v2, c2 = model.parameters()
    x = F.relu(F.max_pool2d(F.conv2d(images, w1, b1), 2))
    x = F.relu(F.max_pool2d(F.conv2d(x, w2, b2), 2))
    torch.manual_seed(2)
    x = F.max_pool2d(F.dropout(x, 0.5, training), 2)
    expected = F.relu(x.reshape(4, 80) @ v1.T + c1) @ v2.T + c2
    torch.manual_seed(2)
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_logistic_forward(shape):
    model, images = logistic(10, shape), images_of(shape)
    weight, bias = model.parameters()
    torch.testing.assert_close(model(images), images.reshape(4, -1) @ weight.T + bias)


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_a_step_lowers_the_loss(name, shape):
    """On one small batch, as the trainer builds the model: channels last, weights from the seed."""
    data = next(n for n, d in DATA.items() if d.shape == shape)
    model = build(RunSpec(sync="single", nodes=1, model=name, data=data), 10)
    model.train()
    images = images_of(shape, 8).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)  # small: a step along the gradient cannot overshoot
    losses = []
    for _ in range(2):
        torch.manual_seed(0)  # the same dropout masks: the same function is descended
        optimizer.zero_grad()
        logits = model(images)
        assert logits.shape == (8, 10)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[1] < losses[0]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["vgg11", "alexnet", "cnn5"])
def test_build_is_the_same_for_the_same_seed_and_channels_last(name):
    settings = {"SYNC": "single", "MODEL": name}
    first, again, other = (build(RunSpec.from_settings({**settings, "SEED": seed}), 10) for seed in "334")
    for one, same, different in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, same)
        assert one.dim() < 2 or not torch.equal(one, different)
        assert one.dim() != 4 or one.is_contiguous(memory_format=torch.channels_last)


def test_build_refuses_a_registry_that_tells_another_size(monkeypatch):
    wrong = MODELS["vgg11"].__class__("trainer.models.vgg:vgg11", "", {COLOUR: 1})
    monkeypatch.setitem(MODELS, "vgg11", wrong)
    with pytest.raises(AssertionError, match="9231114 parameters, the registry says 1"):
        build(RunSpec(sync="single", nodes=1), 10)


def test_build_in_the_shape_of_the_data():
    def inputs(data):
        return build(RunSpec(sync="single", nodes=1, model="logistic", data=data), 10)[1].in_features

    assert [inputs(d) for d in ("mnist", "fashion_mnist", "cifar10", "svhn", "synthetic")] == [
        784,
        784,
        3072,
        3072,
        784,
    ]
