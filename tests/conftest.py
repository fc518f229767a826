"""For all tests: no orchestrator outlives the test that started it, and what the killed ones left is removed."""

import signal

import hypothesis
import pytest
from orchestrator import STARTED

from monitor.interrupt import SIGNALS
from monitor.runtime.ownership import sweep

clocks = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("no clock", **clocks)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("no clock")


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
