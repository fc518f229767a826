"""What a rank may say, and how often. Its stream is written in its node, where a rank's user can write what it likes.

    RankStream(spec, rank, base).event(line)    # the event; None for a line that is none; EventFault for one that is
                                               # not the rank's to send

An EventFault is that rank's fault: the run fails and names it.
"""

from trainer import events
from trainer.checkpoint_folder import FOLDER, name_of
from trainer.events import EventFault
from trainer.spec import RunSpec

FAILURES = ("own", "peer", "deadline", "mismatch", "input")  # a Failed's kinds


class RankStream:
    """One rank's stream during one attempt. `base`: the step that the attempt goes on from."""

    def __init__(self, spec: RunSpec, rank: int, base: int = 0):
        self._spec, self._rank, self._base = spec, rank, base
        self._checkpoints: set[int] = set()

    def event(self, line: str) -> events.Event | None:
        """The event on this line, None when it is none. Raises EventFault when this rank may not send it."""
        event = events.parse(line)
        if event:
            self._check(event)
        return event

    def _check(self, event: events.Event) -> None:
        match event:
            case events.Checkpoint():
                self._check_checkpoint(event)

    def _check_checkpoint(self, checkpoint: events.Checkpoint) -> None:
        """Its path is joined to the run's folder, so that only the one that we write ourselves will do."""
        step = checkpoint.step
        if self._rank != 0:
            raise EventFault("it sent a checkpoint, which rank 0 alone does")
        if checkpoint.path != f"{FOLDER}/{name_of(step)}":
            raise EventFault(f"its checkpoint of step {step} is not in {FOLDER}/{name_of(step)}")
        if step in self._checkpoints:
            raise EventFault(f"it sent the checkpoint of step {step} twice")
        self._checkpoints.add(step)
