"""HTTP for the live page: GET / is the page, GET /events the run as server-sent events, and nothing else is there.

Whom it answers is decided as on the ports of the server of models (trainer/hosts.py). Each connection is one request.
Connections, the size and time of a request's head, and the time to take an answer are bounded.
"""

import asyncio
import socket
from contextlib import suppress

from monitor.watch.live import Live, place_of
from monitor.watch.page import Page
from trainer.hosts import Hosts

PORT = 7007
HEAD_BYTES, HEAD_SECONDS = 16 << 10, 10.0
TAKE_SECONDS = 10.0
END_SECONDS = 2.0  # in which readers are told that the run is over
MOST_CLIENTS = 32
REASONS = {
    **{200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed"},
    **{408: "Request Timeout", 421: "Misdirected Request", 431: "Request Header Fields Too Large"},
    503: "Service Unavailable",
}
ALWAYS = {
    "Connection": "close",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PLAIN = "text/plain; charset=utf-8"


def listen(port: int = 0) -> socket.socket:
    """A socket that listens on this port of 127.0.0.1; 0: any free one. Raises OSError."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def address(listener: socket.socket) -> str:
    """What a person types to see the page."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Refusal(Exception):
    """A request that is not answered: its status and one line."""

    def __init__(self, status: int, text: str):
        self.status, self.text = status, text


class Server:
    """Answers the clients of one listening socket."""

    def __init__(self, live: Live):
        self._live, self._page, self._hosts = live, Page(), Hosts()
        self._clients = 0
        self._answers: set[asyncio.Task] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Until the run is over, or the live run is left. What is being said is said to its end, within seconds."""
        server = await asyncio.start_server(self._meet, sock=listener, limit=HEAD_BYTES)
        await self._live.follow()
        server.close()
        if self._answers:
            await asyncio.wait(self._answers, timeout=END_SECONDS)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        task = asyncio.current_task()
        assert task is not None
        try:
            if self._clients > MOST_CLIENTS:
                raise Refusal(503, f"{MOST_CLIENTS} connections are open already: close a page")
            request = await self._request(reader, writer)
            self._answers.add(task)
            await self._answer(*request, writer)
        except Refusal as refusal:
            with suppress(OSError, asyncio.TimeoutError):
                more = {"Allow": "GET"} if refusal.status == 405 else {}
                await _send(writer, _head(refusal.status, {"Content-Type": PLAIN, **more}) + refusal.text + "\n")
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            writer.transport.abort()  # it left, or takes nothing
        finally:
            self._clients -= 1
            self._answers.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, dict[str, str]]:
        """The path and the headers. Raises Refusal."""
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the request did not come within {HEAD_SECONDS:g} s") from None
        except asyncio.LimitOverrunError:
            raise Refusal(431, f"the head of the request is longer than {HEAD_BYTES} bytes") from None
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = [
            (name.lower(), value.strip()) for name, colon, value in (line.partition(":") for line in lines) if colon
        ]
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or len(pairs) != len(lines):
            raise Refusal(400, "this is no HTTP/1.1")
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        address = writer.get_extra_info("sockname")[0]
        if refused := self._hosts.refusal(fields, words[2].removeprefix("HTTP/"), address):
            raise Refusal(refused.status, refused.message)
        if words[0] != "GET":
            raise Refusal(405, "only GET is answered")
        return words[1].partition("?")[0], dict(pairs)

    async def _answer(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        """Send what is at this path. Raises Refusal."""
        if path == "/":
            page = self._page
            more = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": page.policy}
            await _send(writer, _head(200, more) + page.text)
        elif path == "/events":
            await _send(writer, _head(200, {"Content-Type": "text/event-stream; charset=utf-8"}))
            async for text in self._live.tell(place_of(headers.get("last-event-id"))):
                await _send(writer, text)
        else:
            raise Refusal(404, "there is nothing here; the page is at /")


def _head(status: int, headers: dict[str, str]) -> str:
    lines = [
        f"HTTP/1.1 {status} {REASONS[status]}",
        *(f"{name}: {value}" for name, value in (ALWAYS | headers).items()),
    ]
    return "\r\n".join(lines) + "\r\n\r\n"


async def _send(writer: asyncio.StreamWriter, text: str) -> None:
    """Send it, and wait until the client has taken most of it. Raises OSError and TimeoutError."""
    writer.write(text.encode())
    await asyncio.wait_for(writer.drain(), TAKE_SECONDS)
