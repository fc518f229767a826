"""For all tests: how they share the machine, and that no orchestrator outlives the test that started it."""

import signal
from pathlib import Path

import hypothesis
import pytest
from orchestrator import STARTED

from monitor.interrupt import SIGNALS
from monitor.runtime.ownership import sweep

clocks = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("no clock", **clocks)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("no clock")


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What one worker of pytest-xdist runs by itself (`--dist loadgroup`): all tests that share the cluster, all that
    start ranks on this machine, and the unit tests of each file. The first two take longest, so they come first.
    """
    for item in items:
        folder, *_ = item.path.relative_to(HERE).parts
        item.add_marker(pytest.mark.xdist_group(folder if folder in ("cluster", "local") else item.path.stem))


def pytest_configure():
    """A shell starts background jobs with signals ignored, which is inherited, and which syncbed respects: undo it."""
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_orchestrator_is_left():
    yield
    while STARTED:
        process = STARTED.pop().process
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_of_killed_orchestrators():
    yield
    sweep()
