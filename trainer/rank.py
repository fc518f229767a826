"""A rank's process as its launcher sees it: its events, its heartbeat, and how it ends.

No torch here.
"""

import os
import signal
import threading
from queue import SimpleQueue
from typing import NoReturn, TextIO

from trainer import events
from trainer.run.metrics import Metrics, NoMetrics
from trainer.wire.peers import BEAT_SECONDS, Peers

DONE, FAILED, BAD_INPUT = 0, 1, 2  # exit codes
TELL_SECONDS = 10.0  # how long a rank that failed waits for its last words to be read


class Rank:
    """This process as its launcher sees it: what it says, its heartbeat, and how it ends.

    What it says is written by a thread of its own: whoever reads it may be stopped (Ctrl-Z), and
    training goes on.
    """

    def __init__(self, stream: TextIO):
        self._outbox: SimpleQueue[events.Event | threading.Event] = SimpleQueue()
        threading.Thread(target=self._write, args=(stream,), daemon=True, name="events").start()
        self.number = int(os.environ["RANK"]) if os.environ.get("RANK", "").isdecimal() else 0
        self.peers: Peers | None = None
        self.metrics: Metrics | NoMetrics = NoMetrics()
        self._ending = threading.Lock()

    def tell(self, event: events.Event) -> None:
        """Say one event. Does not wait until it is written."""
        self._outbox.put(event)

    def finish_telling(self, seconds: float | None = None) -> None:
        """Wait until all that was told is written, or for so many seconds."""
        marker = threading.Event()
        self._outbox.put(marker)
        marker.wait(seconds)

    def _write(self, stream: TextIO) -> None:
        try:
            while True:
                match self._outbox.get():
                    case threading.Event() as marker:
                        marker.set()
                    case event:
                        events.write(event, stream)
        except OSError:
            os._exit(FAILED)  # nobody will ever read it: who started this rank is gone

    def begin(self) -> None:
        """Start the heartbeat, and the thread that ends this process on a signal.

        Both are threads because the main one may be deep in a collective, where no Python handler
        would run.
        """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)  # written to by Python's C handler, in whichever thread the signal arrives
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._signals, args=(reading,), daemon=True, name="signals").start()
        threading.Thread(target=self._heartbeat, daemon=True, name="heartbeat").start()

    def _signals(self, reading: int) -> None:
        number = os.read(reading, 1)[0]
        self.fail("own", f"stopped by {signal.Signals(number).name}", quietly=True)

    def _heartbeat(self) -> None:
        beats = 0
        while not threading.Event().wait(BEAT_SECONDS):
            beats += 1
            if beats % round(events.HEARTBEAT_SECONDS / BEAT_SECONDS) == 0:
                self.tell(events.Alive(rank=self.number))
            if self.peers and (overdue := self.peers.overdue()):
                number, seconds = overdue
                message = f"rank {number} has shown no sign of life for {seconds:.0f} s"
                self.fail("peer", message, number, overdue=True)

    def fail(
        self,
        kind: str,
        message: str,
        suspect: int | None = None,
        trace: str = "",
        quietly: bool = False,
        overdue: bool = False,
    ) -> NoReturn:
        """Say Failed, tell the peers, end the process at once: Gloo's threads may hang on a peer that is gone.

        `quietly`: leave without waiting for the peers to read the farewell. `overdue`: a peer
        missed DEADLINE. Never returns.
        """
        if not self._ending.acquire(blocking=False):
            threading.Event().wait()  # another thread is ending the process
        try:
            if overdue or kind == "deadline":
                self.metrics.deadline_missed()
            message = " ".join(message.split())
            self.tell(
                events.Failed(rank=self.number, kind=kind, message=message, suspect_rank=suspect, traceback=trace)
            )
            if self.peers:
                self.peers.leave(kind, message, suspect, linger=not quietly)
            self.finish_telling(TELL_SECONDS)
        finally:
            os._exit(BAD_INPUT if kind == "input" else FAILED)
