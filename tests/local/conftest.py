"""Ranks that the tests of this folder share: starting them is what costs time."""

import pytest
from group import Group


@pytest.fixture(scope="session")
def groups():
    """Ranks for every n, started when first asked for."""
    groups = {n: Group(n) for n in (1, 2, 3, 4)}
    yield groups
    for group in groups.values():
        group.stop()
