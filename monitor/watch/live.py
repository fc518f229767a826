"""A run as it goes on, for any number of readers: read anew each second while there is one, and told to all of them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from monitor.watch.facts import Facts
from monitor.watch.feed import Tail, rows_of
from monitor.watch.story import Place, Story
from trainer.received import load_json

TURN_SECONDS = 1.0
ENDS = {"finished": "The run has finished.", "failed": "The run has failed"}
KILLED = "The run is over: its orchestrator was killed before it could write a result."
GONE = "The run is over, and its folder was removed."


class Live:
    """The story of one run. All is called on one event loop."""

    def __init__(self, facts: Facts):
        self.facts, self.story = facts, Story(facts)
        self.readers = 0
        self.left = time.monotonic()  # when the last reader left
        self._events, self._rows = Tail(Path(facts.folder) / "events.jsonl"), rows_of(facts)
        self._over = False
        self._end: dict | None = None
        self._stir = asyncio.Event()  # something is to be done before the next turn is due
        self._turned = asyncio.Event()  # set, and replaced, at each turn

    def finish(self) -> None:
        """The run is over: tell the readers, and let `follow` end."""
        self._over = True
        self._stir.set()

    def leave(self) -> None:
        """Let `follow` end without a word: the run goes on."""
        self._end = {}
        self._stir.set()

    async def follow(self) -> None:
        """Read what the run writes, until it is over and that was read to its end."""
        while not self._over and self._end is None:
            if self.readers:
                await self._read()
                self._turn()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stir.wait(), TURN_SECONDS)
            self._stir.clear()
        if self._over:
            await self._read()
            self._end = last_words(Path(self.facts.folder))
        self._turn()
        self._events.close()
        self._rows.close()

    async def _read(self) -> None:
        with suppress(OSError):
            for lines in self._events.read():
                for line in lines:
                    self.story.take(line)
                await asyncio.sleep(0)  # others are answered meanwhile
        with suppress(OSError, StopIteration):
            source = self._rows.read()
            while (rows := await asyncio.to_thread(next, source, None)) is not None:
                self.story.take_rows(rows)

    def _turn(self) -> None:
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()

    async def tell(self, place: Place | None) -> AsyncIterator[str]:
        """What a reader who has come as far as `place` is told, as server-sent events, to the end."""
        self.readers += 1
        self._stir.set()
        try:
            while True:
                turned = self._turned
                anew, items, place = self.story.since(place)
                texts = [message("begin", self.story.head())] if anew else []
                if items or anew:
                    texts.append(message("more", items, place))
                problem = self._rows.problem or self.facts.note
                texts.append(message("now", self.story.now() | {"problem": problem}))
                if self._end:
                    texts.append(message("end", self._end))
                yield "".join(texts)
                if self._end is not None:
                    return
                await turned.wait()
        finally:
            self.readers -= 1
            self.left = time.monotonic()


def message(kind: str, content: dict | list, place: Place | None = None) -> str:
    """One server-sent event. `place`: where a reader is who has it, which its browser says when it comes again."""
    mark = f"id: {place[0]}.{place[1]}\n" if place else ""
    return f"event: {kind}\n{mark}data: {json.dumps(content, allow_nan=False)}\n\n"


def place_of(text: str | None) -> Place | None:
    """The place that a browser names. None: it has nothing, or names none."""
    telling, _, count = (text or "").rpartition(".")
    return (telling, int(count)) if telling and count.isascii() and count.isdigit() and len(count) < 10 else None


def last_words(folder: Path) -> dict:
    """How the run ended, as its result says."""
    try:
        result = load_json(folder / "result.json", has_types=True)
        status, error = result["status"], result.get("error") or {}
        text = ENDS.get(status, KILLED)
        if status == "failed":
            text += f": {error.get('message', 'no reason is known')}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        status, text = "failed", GONE
    status = status if status in ENDS else "failed"
    return {"status": status, "text": text, "report": str(folder / "report.html")}
