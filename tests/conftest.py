"""For all tests: no orchestrator outlives the test that started it, and what the killed ones left is removed."""

import hypothesis
import pytest
from orchestrator import STARTED

from monitor.runtime.local import sweep

hypothesis.settings.register_profile("no clock", deadline=None)  # a busy machine is slow, not wrong
hypothesis.settings.load_profile("no clock")


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
