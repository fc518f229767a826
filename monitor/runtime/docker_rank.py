"""One rank in a container: a `docker exec` of the node's launcher, whose stdin and output are one attached stream."""

import struct
import threading
import time
from contextlib import suppress

from docker import APIClient
from docker.errors import NotFound
from docker.models.containers import Container
from docker.utils import socket as docker_socket

from monitor.engine import sdk
from monitor.errors import UserError
from monitor.runtime.base import RankHandle
from monitor.runtime.streams import RankOutput

PYTHON = "python"
KILLED, STOPPED = "its launcher was killed", "its node stopped or the engine went away"
REMOVED = "its node was taken away, as cluster-down does"
SETTLE_SECONDS = 1.0  # until the engine knows that a node has ended, whose launcher has ended with it
STREAMS = {docker_socket.STDOUT: "stdout", docker_socket.STDERR: "stderr"}


def api_of(container: Container) -> APIClient:
    """The engine's API, through the client that the container came from."""
    assert container.client is not None, "containers that the SDK lists have a client"
    return container.client.api


class Execution:
    """The launcher of one rank, as the engine sees it."""

    def __init__(self, container: Container, exec_id: str, run_id: str):
        self._container, self._exec_id, self._run_id = container, exec_id, run_id
        self._node_since = _since(container)

    def end_reason(self) -> str:
        """Why it ended without a last word."""
        until = time.monotonic() + SETTLE_SECONDS
        with suppress(UserError), sdk.guard():
            while (why := self._why()) == KILLED and time.monotonic() < until:
                time.sleep(0.05)
            return why
        return STOPPED

    def _why(self) -> str:
        """As far as the engine knows by now."""
        try:
            self._container.reload()
        except NotFound:
            return REMOVED
        if self._container.status == "running":
            if _since(self._container) != self._node_since:
                return "its node was restarted"
            launcher = api_of(self._container).exec_inspect(self._exec_id)
            if not launcher["Running"]:
                code = launcher["ExitCode"]
                return KILLED if code == 137 else f"its launcher ended with exit code {code}"
        return REMOVED if self._container.status == "removing" else STOPPED

    def end(self) -> None:
        """Kill it and its rank. It may be stopped: then it does not see that we are gone, and would hold the node."""
        with suppress(UserError), sdk.guard():
            self._container.exec_run([PYTHON, "-m", "node.launcher", "end", self._run_id])


def _since(container: Container) -> str:
    """When it was started, as of its last reload."""
    return container.attrs["State"]["StartedAt"]


class DockerRank(RankHandle):
    """`stream`: of the attached exec, as the SDK hands it out. `request`: what the launcher reads first."""

    def __init__(self, stream, request: bytes, output: RankOutput, execution: Execution):
        self._stream, self._output, self._execution = stream, output, execution
        self._ended = threading.Event()
        self._socket = getattr(stream, "_sock", stream)  # the SDK hands out a read-only view of the socket
        self._socket.settimeout(None)  # a run may be silent for longer than the SDK's request timeout
        self._send(request)
        threading.Thread(target=self._read, daemon=True).start()

    def signal(self, name: str) -> None:
        self._send(name.encode() + b"\n")

    def end_reason(self) -> str:
        return self._execution.end_reason()

    def close(self, vanished: bool = False) -> None:
        if vanished or not self._ended.is_set():
            self._execution.end()
        self._stream.close()
        self._socket.close()

    def _send(self, line: bytes) -> None:
        with suppress(OSError):  # the launcher is gone, and its rank with it
            self._socket.sendall(line)

    def _read(self) -> None:
        try:
            for number, data in docker_socket.frames_iter(self._socket, tty=False):
                self._output.feed(STREAMS[number], data)
        except (OSError, ValueError, struct.error):
            pass  # the engine went away or the run was closed: the end of the stream says so
        self._ended.set()
        self._output.end()
