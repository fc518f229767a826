"""Errors that a person can act on. Each is one line that says what is wrong and what would do."""

BAD_INPUT, FAILED = 2, 1


class UserError(Exception):
    """Bad input or a missing prerequisite: exit code 2."""

    exit_code = BAD_INPUT


class Busy(UserError):
    """Another run holds the nodes. `run` is its id."""

    def __init__(self, run: str):
        self.run = run
        super().__init__(f"run {run} is on the cluster now; wait for it to end, or stop it with Ctrl-C there")


class RunFailed(UserError):
    """The input was good but the work failed: exit code 1."""

    exit_code = FAILED
