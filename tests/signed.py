"""What launchers say in tests: each is given KEY, and `event_of` takes their signature off."""

from node.signature import FORM
from trainer import events

KEY = "5a" * 32


def event_of(line: str) -> events.Event | None:
    """The event that a launcher says with this line, or a rank; None where it is none."""
    form = FORM.fullmatch(line.strip())
    return events.parse(form.group(4) if form else line)


def next_event(stream) -> events.Event | None:
    """The next one of a stream of lines; a launcher may end an open line first."""
    while (line := stream.readline()) == "\n":
        pass
    return event_of(line)
