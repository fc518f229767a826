"""One replica."""

from trainer.sync.base import Sync


class Single(Sync):
    """Plain SGD on one rank: the baseline that the others are read against. Bytes per step: 0."""

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        return 0, 0
