"""For all tests: no orchestrator outlives the test that started it."""

import hypothesis
import pytest
from orchestrator import STARTED

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
