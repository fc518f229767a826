"""Hold a cluster's first node, and so all of them: no run begins meanwhile, and none goes on.

Every run has a rank on node 0 and holds that node first, so whoever holds it may change all others.
"""

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from docker.models.containers import Container
from docker.utils import socket as docker_socket

from monitor.engine import sdk
from monitor.errors import UserError
from monitor.runtime.docker_rank import PYTHON, api_of

SECONDS = 60.0  # in which the node says whether it is held: a Python has to start, on a twentieth of a core


@contextmanager
def hold(node: Container, who: str) -> Iterator[bool]:
    """Whether node 0 is ours until the end of the block: False when a run has it. `who`: shown to runs meanwhile.

    A node that cannot be asked (stopped, paused, gone) is nobody's.
    """
    with ExitStack() as streams:
        answer = ""
        with suppress(UserError), sdk.guard():
            api = api_of(node)
            command = [PYTHON, "-m", "node.launcher", "hold", who]
            stream = api.exec_start(api.exec_create(node.id, command, stdin=True)["Id"], socket=True)
            connection = getattr(stream, "_sock", stream)  # the SDK hands out a read-only view of the socket
            streams.callback(connection.close)
            streams.callback(stream.close)  # first
            answer = _first_line(connection)
        yield answer != "busy"


def _first_line(connection) -> str:
    """What the launcher in the node prints first: held or busy."""
    data = b""
    connection.settimeout(SECONDS)
    with suppress(OSError, ValueError, struct.error):
        for number, piece in docker_socket.frames_iter(connection, tty=False):
            data += piece if number == docker_socket.STDOUT else b""
            if b"\n" in data:
                break
    return data.decode(errors="replace").strip()
