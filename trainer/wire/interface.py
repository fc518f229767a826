"""What the node's network interface counts while this rank trains: payload, headers, acknowledgements, heartbeats."""

import os
from contextlib import contextmanager
from pathlib import Path


def interface_bytes(environ=os.environ, root: Path = Path("/sys/class/net")) -> tuple[int, int]:
    """Bytes that this rank's network interface has sent and received since it came up; zeros where nobody counts."""
    counters = root / environ.get("GLOO_SOCKET_IFNAME", "lo") / "statistics"
    try:
        sent, received = (int((counters / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    except (OSError, ValueError):
        return 0, 0
    return sent, received


class Window:
    """From when it was made until now, without what was left out."""

    def __init__(self, read=interface_bytes):
        self._read = read
        self._began = read()

    def bytes(self) -> tuple[int, int]:
        """Sent and received so far."""
        sent, received = self._read()
        return sent - self._began[0], received - self._began[1]

    @contextmanager
    def left_out(self):
        """What the interface carries in here is not counted, as with Wire.uncounted."""
        sent_before, received_before = self.bytes()
        try:
            yield
        finally:
            sent, received = self._read()
            self._began = sent - sent_before, received - received_before
