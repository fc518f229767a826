"""The README names what there is; docs/reference has the details, see test_docs_reference.py."""

import pytest
from documentation import ROOT

from trainer.registry import SYNCS


@pytest.mark.parametrize("name", [n for n, s in SYNCS.items() if s.place.startswith("trainer.")])
def test_every_strategy_is_named(name):
    assert f"`{name}`" in (ROOT / "README.md").read_text()
