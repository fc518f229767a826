"""One command at a time changes a cluster, what is served, or the images."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from monitor import checkout
from monitor.console import say
from monitor.errors import UserError
from trainer.files import lock
from trainer.names import in_folder


@contextmanager
def alone(name: str, what: str, needed: bool = True) -> Iterator[None]:
    """One such command at a time: Compose, run twice at once, makes two networks of one name.

    Raises UserError where the lock cannot be taken; when it is not `needed`, a warning says so and work goes on.
    """
    try:
        checkout.BUILD.mkdir(exist_ok=True)
        command_lock = lock(
            in_folder(checkout.BUILD, f"{name}.lock"),
            on_busy=lambda: say(f"waiting for another command that is changing {what}"),
        )
    except OSError as error:
        problem = f"{checkout.BUILD} cannot be written ({error.strerror})"
        if needed:
            raise UserError(f"{problem}: make it writable; builds are logged there") from None
        say(f"warning: {problem}; let no other command change {what} now")
        command_lock = nullcontext()
    with command_lock:
        yield
