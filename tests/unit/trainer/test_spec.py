"""What a run may be asked for, and how a bad value is told."""

from itertools import product

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


@pytest.mark.parametrize(
    ("settings", "data", "shape"),
    [
        ({}, "cifar10", (3, 32, 32)),
        ({"MODEL": "alexnet"}, "cifar10", (3, 32, 32)),
        ({"MODEL": "cnn5"}, "mnist", (1, 28, 28)),
        ({"MODEL": "logistic"}, "mnist", (1, 28, 28)),
        ({"MODEL": "logistic", "DATA": "svhn"}, "svhn", (3, 32, 32)),
        ({"MODEL": "logistic", "DATA": "synthetic"}, "synthetic", (1, 28, 28)),
        ({"MODEL": "vgg19", "DATA": "synthetic"}, "synthetic", (3, 32, 32)),
    ],
)
def test_a_model_decides_the_data_and_its_shape_where_none_is_named(settings, data, shape):
    spec = RunSpec.from_settings(settings)
    assert (spec.data, spec.shape) == (data, shape)


def test_a_model_decides_the_learning_rate_where_none_is_named():
    rates = [RunSpec.from_settings(s).lr for s in ({}, {"MODEL": "vgg16"}, {"MODEL": "cnn5"})]
    assert rates == [0.1, 0.1, 0.01]
    assert RunSpec.from_settings({"MODEL": "cnn5", "LR": "0.1"}).lr == 0.1


def test_every_model_goes_with_its_shapes_and_no_other():
    for model, data in product(MODELS, DATA):
        fits = DATA[data].shape is None or DATA[data].shape in MODELS[model].parameters
        if fits:
            assert RunSpec(model=model, data=data).shape in MODELS[model].parameters
            continue
        with pytest.raises(SpecError) as error:
            RunSpec(model=model, data=data)
        this_model, this_data = (
            str(error.value).split("with this model DATA=")[1].split(" would do, with this data MODEL=")
        )
        for other in this_model.split(" or "):
            assert RunSpec(model=model, data=other)
        for other in this_data.split(" or "):
            assert RunSpec(model=other, data=data)


def test_a_pair_that_does_not_fit_is_refused_with_what_fits_either():
    with pytest.raises(SpecError) as error:
        RunSpec.from_settings({"MODEL": "cnn5", "DATA": "cifar10"})
    models = " or ".join(name for name, model in MODELS.items() if (3, 32, 32) in model.parameters)
    assert str(error.value) == (
        "DATA=cifar10: its images are 3x32x32 and MODEL=cnn5 takes 1x28x28; "
        f"with this model DATA=mnist or fashion_mnist or synthetic would do, with this data MODEL={models}"
    )
    with pytest.raises(SpecError, match=r"^DATA=mnist: its images are 1x28x28 and MODEL=vgg11 takes 3x32x32; "):
        RunSpec.from_settings({"DATA": "mnist"})


def test_single_is_one_node_without_saying_so():
    assert RunSpec.from_settings({"SYNC": "single"}).nodes == 1


def test_hogwild_is_two_workers_of_one_node_without_saying_so():
    spec = RunSpec.from_settings({"SYNC": "hogwild"})
    assert (spec.nodes, spec.nproc, spec.workers, spec.batch) == (1, 2, 2, 256)
    assert RunSpec.from_settings({"SYNC": "hogwild", "NPROC": "3"}).batch == 255


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
        ({"SYNC": "all_reduce", "RATIO": "0.1"}, "RATIO=0.1: goes with COMPRESS=topk"),
        ({"RATIO": "0"}, "RATIO=0.0: a number above 0 and at most 1"),
        ({"RATIO": "1.1"}, "RATIO=1.1: a number above 0 and at most 1"),
        ({"TENSORBOARD": "yes"}, "TENSORBOARD=yes: 0 or 1"),
        ({"COLOCATED": "2"}, "COLOCATED=2: 0 or 1"),
        ({"SYNC": "ring", "COMPRESS": "zip"}, "COMPRESS=zip: one of: none, bf16, topk, powersgd"),
        (
            {"SYNC": "all_reduce", "GRANULARITY": "flat", "BUCKET_MB": "1"},
            "BUCKET_MB=1.0: goes with GRANULARITY=bucket",
        ),
        ({"SYNC": "ddp", "COMPRESS": "bf16"}, "COMPRESS=bf16: SYNC=ddp does not take it; all_reduce, ring"),
        ({"SYNC": "ring", "SHARES": "2,1"}, "SHARES=2,1: 4 whole numbers from 1, one for each worker"),
        ({"SYNC": "ring", "SHARES": "2,1,1,1", "BATCH": "4"}, "BATCH=4: does not divide over SHARES=2,1,1,1; 5 or 10"),
        ({"SYNC": "hogwild", "NODES": "2"}, "NODES=2: SYNC=hogwild shares the memory of one node; leave NODES out or"),
        ({"SYNC": "hogwild", "H": "4"}, "H=4: SYNC=hogwild does not take it; local_sgd, diloco would"),
        ({"SYNC": "local_sgd", "H": "0"}, "H=0: a whole number from 1"),
        ({"SYNC": "local_sgd", "OUTER_LR": "1"}, "OUTER_LR=1.0: SYNC=local_sgd does not take it; diloco would"),
        ({"SYNC": "diloco", "OUTER_MOMENTUM": "1"}, "OUTER_MOMENTUM=1.0: a number from 0 and below 1"),
        ({"SYNC": "gossip", "TOPOLOGY": "star"}, "TOPOLOGY=star: one of: ring, random"),
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


def test_workers_that_do_not_stop_together_are_not_scored_between_steps():
    assert RunSpec.from_settings({"SYNC": "ps_sync", "EVALUATE": "10"}).evaluate_steps == 10
    with pytest.raises(SpecError, match=r"EVALUATE=10: the workers of SYNC=ps_async .* EVALUATOR=1"):
        RunSpec.from_settings({"SYNC": "ps_async", "EVALUATE": "10"})


def test_what_settings_are_called_elsewhere_is_understood():
    from monitor.run.request import NOT_IN_SPEC
    from trainer.values import OTHER_WORDS, unknown

    known = RunSpec.settings_help() | NOT_IN_SPEC
    assert set(OTHER_WORDS.values()) <= set(known) and not set(OTHER_WORDS) & set(known)
    assert unknown("strategy", known) == "no such setting; did you mean SYNC?"
    assert unknown("BATHC", known) == "no such setting; did you mean BATCH?"
    assert unknown("STRATEGY", {"PORT": ""}) == "no such setting; one of: PORT"
