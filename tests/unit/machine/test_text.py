"""Words for people."""

import pytest

from monitor.text import plural


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (2_500_000, "2500000 steps"), (1.0, "1 step"), (0.5, "0.5 steps")],
)
def test_only_one_is_singular(count, shown):
    assert plural(count, "step") == shown
