"""Around each port's application: what a client does besides asking.

It leaves, sends what nobody reads, or means another server.

- A request whose client has left is not computed: the task that answers it is cancelled, wherever it waits.
- An answer that is ready before the body has come is sent after the rest was read, or closes the connection.
- A request for a name that the server is not known by, or from a page of another site, is refused: 421, 403.
- Too many connections are refused, and so is what waits still when the server's time to end is over: 503.
"""

import asyncio
from functools import partial

from serving.errors import Refused, answer, busy
from trainer.hosts import MISDIRECTED, Hosts

LINGER_SECONDS = 1.0  # for the rest of a body that nobody wants
CONNECTIONS = 900  # open at once on a port; a process may usually have 1024 files
GONE = "syncbed.gone"  # in the scope of a request whose client has left
LEAVE = "syncbed.leave"  # there: what to call when it does. A task that listens would cost each request 30 us


class Layer:
    """An ASGI application. `cancels`: whether a request ends when its client leaves."""

    def __init__(self, app, cancels: bool, hosts: Hosts):
        self._app, self._cancels, self._hosts = app, cancels, hosts
        self.connections: set = set()  # the server's

    async def __call__(self, scope, receive, send) -> None:
        client, app = _Client(scope, receive, send, self._cancels), self._app
        if len(self.connections) > CONNECTIONS:
            app = answer(scope["path"], busy(f"{CONNECTIONS} connections are open already"))
        elif refused := refusal(self._hosts, scope):
            app = answer(scope["path"], refused)
        try:
            await app(scope, client.receive, client.send)
        except asyncio.CancelledError:
            if GONE in scope:
                return
            if client.answered:
                raise
            await answer(scope["path"], busy("the server ends"))(scope, receive, send)
        finally:
            client.forget()


def refusal(hosts: Hosts, scope) -> Refused | None:
    """Why a request, an ASGI scope, is not answered; None where it is."""
    server = scope.get("server")
    refused = hosts.refusal(scope["headers"], scope["http_version"], server[0] if server else None)
    if refused is None:
        return None
    kind = "MisdirectedRequestException" if refused.status == MISDIRECTED else "ForbiddenException"
    return Refused(refused.status, kind, refused.message)


class _Client:
    """`receive` and `send` of one request."""

    def __init__(self, scope, receive, send, cancels: bool):
        self._scope, self._receive, self._send = scope, receive, send
        self._task = asyncio.current_task() if cancels else None
        self._headers = dict(scope["headers"])
        self._expected = False  # whether the body is asked for: a client may wait for that before it sends it
        self._whole = not self._headers.keys() & {b"content-length", b"transfer-encoding"}
        self.answered = False

    async def receive(self):
        self._expected = True
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._whole = True
            if self._task is not None:
                self._scope[LEAVE] = partial(self._cancel, self._task)
        return message

    def _cancel(self, task: asyncio.Task) -> None:
        """The client has left."""
        self._scope[GONE] = True
        task.cancel()

    async def send(self, message) -> None:
        if message["type"] == "http.response.start":
            self.forget()
            if not (self._whole or await self._rest(message["status"])):
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            self.answered = True
        await self._send(message)

    async def _rest(self, status: int) -> bool:
        """Whether the body has come to its end.

        A connection closed over unread bytes is reset, and the answer lost.
        """
        if status == 408 or (b"expect" in self._headers and not self._expected):  # it is late, or will not be sent
            return False

        async def read() -> None:
            while (await self._receive()).get("more_body", False):
                pass

        try:
            await asyncio.wait_for(read(), LINGER_SECONDS)
        except asyncio.TimeoutError:
            return False
        return True

    def forget(self) -> None:
        """The answer is on its way: who leaves now has had it."""
        self._scope.pop(LEAVE, None)
