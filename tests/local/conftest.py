"""Ranks and a run that the tests of this folder share: starting them is what costs time."""

import pytest
from group import Group


class Groups(dict):
    """Ranks for every number of them, started when first asked for."""

    def __missing__(self, n: int) -> Group:
        return self.setdefault(n, Group(n))


@pytest.fixture(scope="session")
def groups():
    groups = Groups()
    yield groups
    for group in groups.values():
        group.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """A run that never stopped."""
    from test_resume_run import start

    run = start(tmp_path_factory.mktemp("undisturbed"))
    code, out = run.finish()
    assert code == 0, out
    return run
