"""Pages of reference that the code knows are what it knows; what the registry says is complete."""

import pytest

from docs.generated import FOLDER, PAGES
from monitor.data.catalogue import PREPARERS
from trainer.registry import DATA, SYNCS, load


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_makes(name):
    again = "run: .venv/bin/python -m docs.generated"
    assert (FOLDER / name).read_text() == PAGES[name](), again


def test_every_strategy_says_what_it_sends_and_when_to_use_it():
    real = {name: s for name, s in SYNCS.items() if s.place.startswith("trainer.")}  # tests/local adds more
    assert [name for name, strategy in real.items() if not (strategy.sends and strategy.use)] == []


def test_every_data_set_has_its_preparer():
    assert PREPARERS.keys() == DATA.keys()
    assert all(callable(load(place)) for place in PREPARERS.values())
    page = (FOLDER / "guides/data.md").read_text()
    assert [name for name in DATA if f"| `{name}` |" not in page] == []
