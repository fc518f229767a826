"""For all tests: how they share the machine, and that no orchestrator outlives the test that started it."""

import signal
from pathlib import Path

import hypothesis
import pytest
from orchestrator import STARTED

from monitor.interrupt import SIGNALS
from monitor.runtime.ownership import sweep

HERE = Path(__file__).parent
clocks = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("no clock", **clocks)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("no clock")


def pytest_collection_modifyitems(items):
    """The longest first, those on containers. Unit tests fill the time that they wait."""
    folders = ("cluster", "unit", "local")
    items.sort(key=lambda item: folders.index(item.path.relative_to(HERE).parts[0]))


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
