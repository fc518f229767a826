"""Servers of models, for the tests of serving."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from serving_client import PIXELS, running


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Two artefacts, cnn3 of colour images and logistic of grey ones."""
    from test_serving_export import INPUTS, SPEC, exported, run_folder

    from trainer.spec import RunSpec

    store = tmp_path_factory.mktemp("store")
    grey = {**INPUTS, "shape": [1, 28, 28], "mean": [0.5], "std": [0.25]}
    for name, spec, inputs in (
        ("first", SPEC, INPUTS),
        ("second", RunSpec(sync="single", nodes=1, model="logistic", data="mnist"), grey),
    ):
        runs = tmp_path_factory.mktemp(name)
        run_folder(runs, spec=spec, inputs=inputs)
        exported(runs).rename(store / name)
    return store


@pytest.fixture(scope="session")
def served(store):
    """A server of `cnn`, for tests that leave it as it is."""
    with running(store, body_bytes=200_000) as made:
        assert made.manage("POST", "/models?url=first&model_name=cnn&initial_workers=1&synchronous=true").status == 200
        yield made


@pytest.fixture
def own_store(store, tmp_path):
    """The same artefacts, with nothing remembered."""
    return Path(shutil.copytree(store, tmp_path / "store", ignore=shutil.ignore_patterns("served.json")))


@pytest.fixture
def fresh(own_store):
    with running(own_store) as made:
        yield made


@pytest.fixture(scope="session")
def expected(store) -> np.ndarray:
    """Logits and probabilities of PIXELS."""
    from serving import artefact

    return artefact.load(store / "first")(PIXELS[None])[0]
