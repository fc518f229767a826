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
        return tuple(now - before for now, before in zip(self._read(), self._began, strict=True))

    @contextmanager
    def left_out(self):
        """What the interface carries in here is not counted, as with Wire.uncounted."""
        before = self.bytes()
        yield
        self._began = tuple(now - kept for now, kept in zip(self._read(), before, strict=True))
