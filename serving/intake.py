"""How a request's body comes in: bounded in bytes, in time, and in what all requests together may hold."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from serving.errors import LEFT, Refused, bad, busy


class Intake:
    """Reads bodies.

    `most_bytes` of one, `together_bytes` of all that are held at once, `seconds` for one to come.

    `capacity`: how many that have come may wait to be made sense of.
    """

    def __init__(self, most_bytes: int, seconds: float, capacity: int, together_bytes: int = 128 << 20):
        self.most_bytes, self.together_bytes = most_bytes, together_bytes
        self.seconds, self.capacity = seconds, capacity
        self._held_bytes = self._waiting = 0
        self._readers = ThreadPoolExecutor(2, "reader")  # two at once: what reading takes in memory is bounded

    @asynccontextmanager
    async def body(self, request: Request):
        """The whole body, held until the block ends. Raises Refused (408, 413, 503, or LEFT)."""
        content = bytearray()
        try:
            await asyncio.wait_for(self._read(request, content), self.seconds)
            yield bytes(content)
        except asyncio.TimeoutError:
            message = f"the body did not come within {self.seconds:g} s"
            raise Refused(408, "RequestTimeoutException", message) from None
        except ClientDisconnect:
            raise Refused(LEFT, "ClientException", "the client left before its body was whole") from None
        finally:
            self._held_bytes -= len(content)

    async def convert(self, read: Callable, *arguments):
        """What `read` makes of a body, in a thread. Raises Refused (503), and what `read` does."""
        if self._waiting >= self.capacity:
            raise busy(f"{self.capacity} bodies are waiting to be read already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, read, *arguments)
        finally:
            self._waiting -= 1

    async def _read(self, request: Request, content: bytearray) -> None:
        too_large = Refused(413, "RequestEntityTooLargeException", f"the body is larger than {self.most_bytes} bytes")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.most_bytes:
            raise too_large
        async for chunk in request.stream():
            if len(content) + len(chunk) > self.most_bytes:
                raise too_large
            if self._held_bytes + len(chunk) > self.together_bytes:
                raise busy("the bodies of other requests take all the room there is")
            content += chunk
            self._held_bytes += len(chunk)


async def file_in(request: Request, body: bytes) -> bytes:
    """The image in a body: the multipart field `data`, or the body as it is.

    Raises Refused (400).
    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        return body
    headers = Headers({"content-type": f"{kind}; charset=latin-1"})  # a field without a file name is text: as it came

    async def stream():
        yield body

    try:
        parser = MultiPartParser(headers, stream(), max_files=4, max_fields=4, max_part_size=len(body))
        parser.spool_max_size = len(body) + 1  # in memory: what clients send is on no disk
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, UnicodeError) as error:
        raise bad(f"not a multipart form: {getattr(error, 'message', error)}") from None
    try:
        fields = form.getlist("data")
        if len(fields) != 1:
            count = f"{len(fields)} fields" if fields else "no field"
            raise bad(f"the form has {count} named data: one is wanted")
        field = fields[0]
        return await field.read() if isinstance(field, UploadFile) else field.encode("latin-1")
    finally:
        await form.close()
