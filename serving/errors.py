"""A request that is refused: its HTTP status, TorchServe's name for the reason, and one line."""


class Refused(Exception):
    """Answered by `status` and one line. `kind`: as TorchServe calls it."""

    def __init__(self, status: int, kind: str, message: str):
        self.status, self.kind, self.message = status, kind, message
        super().__init__(message)

    @property
    def headers(self) -> dict[str, str]:
        """Busy: come again in a second. Where the body was not read to its end, the connection cannot go on."""
        if self.status == 503:
            return {"Retry-After": "1"}
        return {"Connection": "close"} if self.status in (408, 413) else {}


def bad(message: str) -> Refused:
    """What was sent cannot be used."""
    return Refused(400, "BadRequestException", " ".join(message.split())[:300])


def busy(message: str) -> Refused:
    """Nothing wrong with the request: there is no room for it now."""
    return Refused(503, "ServiceUnavailableException", message)
