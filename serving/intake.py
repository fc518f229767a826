"""How a request's body comes in: bounded in bytes, in time, and in what all requests together may hold."""

import asyncio
from contextlib import asynccontextmanager, suppress

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from serving.errors import Refused, bad, busy


class Intake:
    """Reads bodies. `most_bytes` of one, `together_bytes` of all that are held at once, `seconds` for one to come."""

    def __init__(self, most_bytes: int, seconds: float, together_bytes: int = 128 << 20):
        self.most_bytes, self.seconds, self.together_bytes = most_bytes, seconds, together_bytes
        self._held = 0

    @asynccontextmanager
    async def body(self, request: Request):
        """The whole body, held until the block ends. Raises Refused (408, 413, 503, or 400 for a client that left)."""
        content, stream = bytearray(), request.stream()
        try:
            await asyncio.wait_for(self._read(request, stream, content), self.seconds)
            yield bytes(content)
        except Refused as refused:
            if refused.status == 413:
                await _discard(request, stream)
            raise
        except asyncio.TimeoutError:
            message = f"the body did not come within {self.seconds:g} s"
            raise Refused(408, "RequestTimeoutException", message) from None
        except ClientDisconnect:
            raise bad("the client left before its body was whole") from None
        finally:
            self._held -= len(content)

    async def _read(self, request: Request, stream, content: bytearray) -> None:
        too_large = Refused(413, "RequestEntityTooLargeException", f"the body is larger than {self.most_bytes} bytes")
        said = request.headers.get("content-length", "")
        if said.isdecimal() and int(said) > self.most_bytes:
            raise too_large
        async for chunk in stream:
            if len(content) + len(chunk) > self.most_bytes:
                raise too_large
            if self._held + len(chunk) > self.together_bytes:
                raise busy("the bodies of other requests take all the room there is")
            content += chunk
            self._held += len(chunk)


async def _discard(request: Request, stream) -> None:
    """Read on for a second at most: a connection that is closed over unread bytes is reset, and the answer lost."""

    async def rest() -> None:
        async for _ in stream:
            pass

    if "expect" not in request.headers:  # a client that asked first does not send it then
        with suppress(asyncio.TimeoutError, ClientDisconnect):
            await asyncio.wait_for(rest(), 1)


async def file_in(request: Request, body: bytes) -> bytes:
    """The image in a body: the multipart field `data`, or the body as it is. Raises Refused (400)."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return body

    async def stream():
        yield body

    try:
        form = await MultiPartParser(
            request.headers, stream(), max_files=4, max_fields=4, max_part_size=len(body)
        ).parse()
    except (MultiPartException, KeyError, ValueError, UnicodeError) as error:
        raise bad(f"not a multipart form: {getattr(error, 'message', error)}") from None
    try:
        field = form.get("data")
        if field is None:
            raise bad("the form has no field named data")
        return await field.read() if isinstance(field, UploadFile) else field.encode()
    finally:
        await form.close()
