"""Ctrl-C, SIGTERM and a closed terminal: what they do depends on how far the run is."""

import os
import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEFORE, _RUNNING, _WRITING, _DONE = range(4)


class Stop:
    """Before the run a signal raises KeyboardInterrupt; while it goes on it is asked to stop; what it came to is then
    written whatever comes."""

    def __init__(self):
        self.is_requested = False  # the run is to stop
        self._phase = _BEFORE

    def listen(self) -> "Stop":
        """Take the signals, but for those that are ignored already: nohup and background jobs mean it."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take)
        return self

    def running(self) -> None:
        """From here on nothing is raised, and `is_requested` must be looked at."""
        self._phase = _RUNNING

    def writing(self) -> None:
        """The run has ended."""
        self._phase = _WRITING

    def done(self) -> None:
        """The result is written: what is left is to show it."""
        for number in SIGNALS:  # until the very end, when Python takes its own handlers away
            signal.signal(number, signal.SIG_IGN)

    def _take(self, *_) -> None:
        if self._phase == _BEFORE:
            self._phase = _DONE  # a second one must not disturb what the first one ends
            raise KeyboardInterrupt
        if self._phase == _WRITING:
            os.write(2, b"the run has ended: writing the result\n")
            self._phase = _DONE  # said once
        self.is_requested = True
