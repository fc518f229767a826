"""A request that is refused: its HTTP status, TorchServe's name for the reason, and one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the live page of a run answers by the same rules, without a server of models being installed
    from starlette.responses import JSONResponse

LEFT = 499  # as nginx counts requests whose client left before there was an answer


class Refused(Exception):
    """Answered by `status` and one line. `kind`: as TorchServe calls it."""

    def __init__(self, status: int, kind: str, message: str):
        self.status, self.kind, self.message = status, kind, " ".join(message.split())[:300]
        super().__init__(self.message)

    @property
    def headers(self) -> dict[str, str]:
        """Busy: come again in a second."""
        return {"Retry-After": "1"} if self.status == 503 else {}


def bad(message: str) -> Refused:
    """What was sent cannot be used."""
    return Refused(400, "BadRequestException", message)


def busy(message: str) -> Refused:
    """Nothing wrong with the request: there is no room for it now."""
    return Refused(503, "ServiceUnavailableException", message)


def answer(path: str, refused: Refused, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The refusal in the words of the protocol that was spoken.

    `headers`: besides the refusal's own.
    """
    from starlette.responses import JSONResponse

    if path.startswith("/v2"):
        content = {"error": refused.message}
    else:
        content = {"code": refused.status, "type": refused.kind, "message": refused.message}
    return JSONResponse(content, refused.status, refused.headers | dict(headers or {}))
