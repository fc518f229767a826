"""Parameter servers, each worker at its own pace."""

from trainer.sync.ps_sync import PsSync
from trainer.wire import survivors


class PsAsync(PsSync):
    """As ps_sync, but a server applies each push as it comes and answers at once, up to a bound.

    STALENESS=s: a worker that is s steps ahead of the slowest waits for it (stale synchronous
    parallel; Ho et al., NIPS 2013; without a bound Dean et al., NIPS 2012). s = 0 is ps_sync. The
    staleness of an update, which is how many updates the servers made between the worker's pull and
    its push, is recorded with every step; with n workers it is at most (n-1)(2s+1).
    Scaling: a push is one SGD step with the worker's mean gradient times its samples over BATCH. So
    n pushes at LR move the weights about as far as one step of a synchronous strategy at LR; the
    classic asynchronous SGD, in which each push counts in full, is LR=n times as much.
    Bytes per step: as ps_sync.

    A worker that is lost, rank 0 excepted, is gone on without. Checkpoints on the way are rank 0's
    weights of that moment, for which nobody waits and from which no run can be resumed; from the
    last one it can, if nobody was lost.
    """

    lockstep = False

    def synchronise(self) -> None:
        super().synchronise()
        survivors.spare(self.wire.party, self.spec)

    def _meet(self) -> None:
        self.wire = survivors.regroup(self.wire, self.spec, survivors.END, {})
