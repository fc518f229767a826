"""Three HTTP servers on one event loop: predictions, management, metrics.

uvicorn speaks HTTP. It has no time limit for the head of a request, nor for a client to take its
answer, so the protocol here adds them; bodies are bounded in serving/intake.py. Its own handling of
signals, which would end the process by the signal, is left out.
"""

import asyncio
import re
import socket
from contextlib import contextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving import inference, management, v2
from serving.errors import Refused, answer
from serving.intake import Intake
from serving.layer import LEAVE, Layer
from serving.metrics import Metrics
from serving.models import Models
from trainer.hosts import Hosts

HEAD_SECONDS, HEAD_BYTES = 10.0, 64 << 10
TAKE_SECONDS = 30.0
SILENT_SECONDS = 1.0
DRAIN_SECONDS = 10  # for what is in flight; Docker kills after 12 (stop_grace_period)
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)  # an offer that may be ignored; the parser would skip the body


class Protocol(HttpToolsProtocol):
    """Closes a connection whose request head is not whole within HEAD_SECONDS or HEAD_BYTES, and one whose client
    takes nothing of its answers for TAKE_SECONDS.

    Who sends no more may still wait for the answer (RFC 9112, section 9.6), or has left: TCP tells
    only when something is sent. Most are answered within SILENT_SECONDS; what is not by then counts
    as a client that has left, so that a server which falls behind does not compute for those who
    gave up.
    """

    _timer = _stuck = None
    _head_bytes = 0

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            head, end, body = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nx-upgrade:", head) + end + body
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_is_whole()
        elif not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._too_slow()
            elif self._timer is None:
                self._expect_head()

    def connection_lost(self, exc) -> None:
        self._head_is_whole()
        self._writes_again()
        if self.cycle is not None and LEAVE in self.cycle.scope:
            self.cycle.scope[LEAVE]()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]  asyncio asks for a bool
        """Whether the connection stays open for an answer."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        self.loop.call_later(SILENT_SECONDS, self.transport.close)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(TAKE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writes_again()

    def _writes_again(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _head_is_whole(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._head_bytes = None, 0

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self):
        yield


def applications(models: Models, intake: Intake, metrics: Metrics) -> list[Starlette]:
    """Those of the three ports."""

    async def figures(request: Request) -> Response:  # on the loop's thread, as all that changes what is served
        metrics.serves(models.all())
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    routed = (
        [*inference.routes(models, intake, metrics), *v2.routes(models, intake, metrics)],
        management.routes(models),
        [Route("/metrics", figures)],
    )
    handlers = {Refused: _refused, HTTPException: _no_such_page, Exception: _own_fault}
    return [Starlette(routes=routes, exception_handlers=handlers) for routes in routed]


def _refused(request: Request, error: Refused) -> JSONResponse:
    return answer(request.scope["path"], error)


def _no_such_page(request: Request, error: HTTPException) -> JSONResponse:
    kind = {404: "ResourceNotFoundException", 405: "MethodNotAllowedException"}.get(error.status_code, "Exception")
    headers = {"Allow": ", ".join(_methods(request))} if error.status_code == 405 else error.headers
    return answer(request.scope["path"], Refused(error.status_code, kind, error.detail), headers)


def _methods(request: Request) -> list[str]:
    """All that the path has: a method of its own is a route of its own, and the first alone answers 405."""
    routes = [one for one in request.app.routes if one.matches(request.scope)[0] != Match.NONE]
    return sorted({method for route in routes for method in route.methods})


def _own_fault(request: Request, error: Exception) -> JSONResponse:
    return answer(request.scope["path"], Refused(500, "InternalServerException", type(error).__name__))


def listen(host: str, ports: list[int]) -> list[socket.socket]:
    """A socket for each port; 0 is any free one.

    Raises OSError, whose filename is the port that cannot be had.

    They listen at once: two servers that have only bound a port both have it.
    """
    sockets = []
    for port in ports:
        # Named, as asyncio turns off Nagle's algorithm on such alone: an answer's body would wait 40 ms for an ACK.
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
            one.listen()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(port)) from None
        sockets.append(one)
    return sockets


async def serve(
    sockets: list[socket.socket],
    models: Models,
    intake: Intake,
    metrics: Metrics,
    stop: asyncio.Event,
    ready=lambda: None,
    hosts: Hosts | None = None,
) -> None:
    """Serve until `stop` is set, then answer what is in flight.

    `ready` is called once all ports answer. `hosts`: whom they answer; by default, requests to loopback.
    """
    await models.recall()
    applied = applications(models, intake, metrics)
    hosts = hosts or Hosts()
    servers = [_server(Layer(one, one is applied[0], hosts)) for one in applied]  # a model that is loaded is wanted
    tasks = [asyncio.create_task(server.serve([one])) for server, one in zip(servers, sockets, strict=True)]
    while not all(server.started for server in servers) and not any(task.done() for task in tasks):
        await asyncio.sleep(0.01)
    ready()
    await stop.wait()
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*tasks)


def _server(layer: Layer) -> _Server:
    config = uvicorn.Config(
        layer,
        http=Protocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _Server(config)
    layer.connections = server.server_state.connections
    return server
