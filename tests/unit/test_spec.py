"""What a run may be asked for, and how a bad value is told."""

import pytest

from trainer.registry import DATA, MODELS, SYNCS
from trainer.spec import RunSpec, SpecError


def test_defaults_are_those_of_the_report():
    spec = RunSpec()
    assert (spec.sync, spec.model, spec.data, spec.nodes, spec.batch) == ("ddp", "vgg11", "cifar10", 4, 256)
    assert (spec.steps, spec.epochs, spec.seed) == (40, None, 42)
    assert (spec.lr, spec.momentum, spec.weight_decay) == (0.1, 0.9, 1e-4)


@pytest.mark.parametrize("settings", [{}, {"SYNC": "single"}, {"EPOCHS": "2", "PRECISION": "bf16", "LR": "1e-2"}])
def test_json_gives_back_the_same_spec(settings):
    spec = RunSpec.from_settings(settings)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert "\n" not in spec.to_json()


def test_settings_become_values():
    spec = RunSpec.from_settings({"NODES": "3", "BATCH": "96", "LR": "0.05", "EPOCHS": "2", "DATA": "synthetic"})
    assert (spec.nodes, spec.batch, spec.lr, spec.epochs, spec.steps, spec.data) == (3, 96, 0.05, 2, None, "synthetic")


def test_single_is_one_node_without_saying_so():
    assert RunSpec.from_settings({"SYNC": "single"}).nodes == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"SYNC": "dpd"}, "SYNC=dpd: one of: " + ", ".join(SYNCS)),
        ({"MODEL": "x"}, "MODEL=x: one of: " + ", ".join(MODELS)),
        ({"DATA": "x"}, "DATA=x: one of: " + ", ".join(DATA)),
        ({"PRECISION": "fp8"}, "PRECISION=fp8: one of: fp32, bf16"),
        ({"NODES": "0"}, "NODES=0: a whole number from 1 to 16"),
        ({"NODES": "17"}, "NODES=17: a whole number from 1 to 16"),
        ({"NODES": "two"}, "NODES=two: a whole number"),
        ({"BATCH": "0"}, "BATCH=0: a whole number from 1"),
        ({"BATCH": "254"}, "BATCH=254: does not divide over NODES=4; 252 or 256 would do"),
        ({"BATCH": "3"}, "BATCH=3: does not divide over NODES=4; 4 or 8 would do"),
        ({"STEPS": "0"}, "STEPS=0: a whole number from 1"),
        ({"EPOCHS": "0"}, "EPOCHS=0: a whole number from 1"),
        ({"STEPS": "3", "EPOCHS": "1"}, "EPOCHS=1: give either STEPS or EPOCHS, not both"),
        ({"LR": "0"}, "LR=0.0: a number above 0"),
        ({"LR": "nan"}, "LR=nan: a number above 0"),
        ({"LR": "fast"}, "LR=fast: a number"),
        ({"MOMENTUM": "1"}, "MOMENTUM=1.0: a number from 0 and below 1"),
        ({"DEADLINE": "4"}, "DEADLINE=4.0: a number from 5"),
        ({"SEED": "-1"}, "SEED=-1: a whole number from 0 to 2147483647"),
        ({"EVERY": "-1"}, "EVERY=-1: a whole number from 0"),
        ({"SYNC": "single", "NODES": "2"}, "NODES=2: SYNC=single is one replica; leave NODES out or give 1"),
        ({"STEP": "4"}, "STEP=4: no such setting; did you mean STEPS?"),
    ],
)
def test_a_bad_value_is_one_line_with_what_would_do(settings, says):
    with pytest.raises(SpecError) as error:
        RunSpec.from_settings(settings)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def test_a_field_this_version_does_not_know_is_refused():
    with pytest.raises(SpecError, match="warp=9: not a field"):
        RunSpec.from_json('{"warp": 9}')
