"""The README's tables against the registry: every strategy and model has its row, with the file and the figures."""

import re
from pathlib import Path

import pytest

from monitor.data.catalogue import PREPARERS
from monitor.run.request import NOT_IN_SPEC
from trainer.registry import DATA, MODELS, SYNCS, load
from trainer.spec import RunSpec

README = (Path(__file__).parents[3] / "README.md").read_text()
ROWS = [line for line in README.splitlines() if line.startswith("| `")]


def products_own(registry: dict) -> list[str]:
    """Without the test-only entries that tests/local/injected.py adds when both are collected in one process."""
    return [name for name, entry in registry.items() if entry.place.startswith("trainer.")]


def row(name: str) -> str:
    (found,) = [line for line in ROWS if line.split("|")[1].strip().startswith(f"`{name}`") and "trainer/" in line] or [
        ""
    ]
    return found


@pytest.mark.parametrize("name", products_own(SYNCS))
def test_every_strategy_has_a_row_that_links_its_file(name):
    file = SYNCS[name].place.split(":")[0].replace(".", "/") + ".py"
    assert f"]({file})" in row(name)
    assert (Path(__file__).parents[3] / file).exists()


@pytest.mark.parametrize("name", [*products_own(MODELS), *DATA])
def test_every_model_and_data_set_is_named(name):
    assert f"`{name}`" in README


def test_every_data_set_has_its_preparer():
    assert PREPARERS.keys() == DATA.keys()
    assert all(callable(load(place)) for place in PREPARERS.values())


def test_every_setting_of_a_run_has_its_row():
    table = README[README.index("| setting | default") : README.index("| strategy | bytes")]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}
    assert named == {*RunSpec.settings_help(), *NOT_IN_SPEC}
