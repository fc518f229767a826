"""For all tests: no orchestrator outlives the test that started it."""

import pytest
from orchestrator import STARTED


@pytest.fixture(autouse=True)
def no_orchestrator_is_left():
    yield
    while STARTED:
        process = STARTED.pop().process
        if process.poll() is None:
            process.kill()
            process.communicate()
