"""One command at a time changes a cluster, or what is served."""

import fcntl
from contextlib import contextmanager

from monitor import checkout
from monitor.console import say
from monitor.errors import UserError


@contextmanager
def alone(name: str, what: str, needed: bool = True):
    """One `up` or `down` of a cluster at a time: Compose, run twice at once, makes two networks of one name.

    Raises UserError where the lock cannot be taken; when it is not `needed`, a warning says so and work goes on.
    """
    try:
        checkout.BUILD.mkdir(exist_ok=True)
        held = (checkout.BUILD / f"{name}.lock").open("w")
    except OSError as error:
        problem = f"{checkout.BUILD} cannot be written ({error.strerror})"
        if needed:
            raise UserError(f"{problem}: make it writable; builds are logged there") from None
        say(f"warning: {problem}; let no other command change {what} now")
        held = None
    if held is None:
        yield
        return
    with held as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that is changing {what}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
