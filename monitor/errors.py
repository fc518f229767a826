"""Errors that a person can act on. Each is one line that says what is wrong and what would do."""

from collections.abc import Collection

from trainer.spec import unknown

BAD_INPUT, FAILED = 2, 1
_READ_FROM_THE_CLUSTER = ("PROMETHEUS_PORT", "GRAFANA_PORT")  # settings of `make cluster-up`


class UserError(Exception):
    """Bad input or a missing prerequisite: exit code 2."""

    exit_code = BAD_INPUT


class Busy(UserError):
    """Another run holds the nodes. `run` is its id."""

    def __init__(self, run: str):
        self.run = run
        super().__init__(f"run {run} is on the cluster now; wait for it to end, or stop it with Ctrl-C there")


class NoEngine(UserError):
    """There is no Docker engine, or it is not running: so there is no cluster either."""


class RunFailed(UserError):
    """The input was good but the work failed: exit code 1."""

    exit_code = FAILED


def refuse_unknown(settings: dict[str, str], names: Collection[str]) -> None:
    """Raises UserError for the first setting that `names` does not name."""
    for name, value in settings.items():
        if name in _READ_FROM_THE_CLUSTER and name not in names:
            raise UserError(f"{name}={value}: leave it out: the port is read from the cluster, PROJECT= says which")
        if name not in names:
            raise UserError(f"{name}={value}: {unknown(name, names)}")
