"""Who is alive: every rank's heartbeat in the shared store, and what the others make of it.

A collective that fails says that a connection closed or that time ran out, seldom whose fault it
was. So each rank counts up a beat in torch.distributed's store, on a connection and a thread of its
own, says there where it is, and, when it gives up, why. Ages are taken from this rank's own clock
(when did I last see a new beat?), so that clocks of different machines need not agree. No torch is
imported here: a store is any object with set, check and multi_get.
"""

import json
import threading
import time
from dataclasses import dataclass

BEAT_SECONDS = 0.5
SILENT_SECONDS = 3 * BEAT_SECONDS  # a peer with no beat for this long is a suspect once something has failed
AWAKE_SECONDS = 2 * BEAT_SECONDS  # a longer break is this process's own; so long after it others' ages are known again
EVIDENCE_SECONDS = 4.0  # how long a failed rank waits until one becomes a suspect
START_SECONDS = 60.0  # how long a rank that was never seen may take to start


@dataclass
class Peer:
    beat: int = -1  # -1: not seen yet
    seen_at: float = 0.0  # when its beat last changed, on this rank's monotonic clock
    at: tuple[int, str] = (0, "start-up")  # its latest collective: sequence number and description
    farewell: dict | None = None  # {"kind", "message", "suspect"}, once it has given up


class Peers:
    """Beats for `rank` and watches the others. start() begins; leave() or stop() ends it."""

    def __init__(self, store, rank: int, world_size: int, deadline_seconds: float, clock=time.monotonic):
        self.store, self.rank, self.clock = store, rank, clock
        self.others = {r: Peer() for r in range(world_size) if r != rank}
        self.alike = set(range(world_size))  # ranks that take part in this rank's collectives
        self.expendable: set[int] = set()  # ranks without which the run goes on, for now
        self.lost: dict[int, str] = {}  # ranks that it went on without, and why they are lost
        self.at = (0, "start-up")  # this rank's latest collective
        # The run must have ended within the deadline; what is left after the watch has decided goes into saying so.
        self.limit_seconds = max(deadline_seconds - 2.0, 2 * SILENT_SECONDS)
        self.store_lost = False  # the connection to rank 0's store broke
        self._answered = self._began = self._ran = clock()
        self._woke = self._began - AWAKE_SECONDS
        self._beat = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="peers")

    def start(self) -> None:
        self.note(self.store, *self.at)
        self.exchange()
        self._thread.start()

    def stop(self) -> None:
        """No more beats, and nobody is suspected any more."""
        self._stopping.set()
        self._thread.join(BEAT_SECONDS)

    def note(self, store, sequence: int, what: str) -> None:
        """Publish the collective this rank is about to begin, at once: one that does not fit can abort the process."""
        self.at = (sequence, what)
        store.set(f"at/{self.rank}", json.dumps(self.at))

    def _run(self) -> None:
        while not self._stopping.wait(BEAT_SECONDS):
            asleep = self.clock() - self._answered > self.limit_seconds
            try:
                self.exchange()
            except Exception:  # whatever a broken connection raises: the store's host is gone
                self.store_lost = not self._stopping.is_set()
                return
            if asleep:  # this process itself was stopped, or the store was: everyone's age is unknown
                for peer in self.others.values():
                    peer.seen_at = self.clock()

    def exchange(self, farewell: dict | None = None) -> None:
        """Publish this rank's beat and read the others'."""
        self.awake()
        self._beat += 1
        self.store.set(f"beat/{self.rank}", json.dumps({"beat": self._beat, "farewell": farewell}))
        here = [r for r, p in self.others.items() if p.beat >= 0 or self.store.check([f"beat/{r}"])]
        keys = [f"{what}/{r}" for r in here for what in ("beat", "at")]
        values = [json.loads(text) for text in self.store.multi_get(keys)] if keys else []
        for r, news, (sequence, what) in zip(here, values[::2], values[1::2], strict=True):
            peer = self.others[r]
            if news["beat"] != peer.beat:
                peer.beat, peer.seen_at = news["beat"], self.clock()
            peer.at, peer.farewell = (sequence, what), news["farewell"]
        self._answered = self.clock()

    def leave(self, kind: str, message: str, suspect: int | None, linger: bool = True) -> None:
        """Say why this rank gives up.

        Rank 0, whose process holds the store, stays until the others could read it, unless told not
        to linger. Returns within EVIDENCE_SECONDS plus two seconds, whatever the store does.
        """
        self.stop()
        farewell = {"kind": kind, "message": message, "suspect": suspect}
        stay = linger and self.rank == 0
        last = threading.Thread(target=self._farewell, args=(farewell, stay), daemon=True)
        last.start()
        last.join(EVIDENCE_SECONDS + 1 if stay else 1)

    def _farewell(self, farewell: dict, stay: bool) -> None:
        until = self.clock() + EVIDENCE_SECONDS
        try:
            self.exchange(farewell)
            while stay and self.clock() < until and self._unaware():
                time.sleep(0.1)
                self.exchange(farewell)
        except Exception:  # whatever a broken connection raises: nobody is left to read it
            return

    def _unaware(self) -> bool:
        """Whether a rank still runs that has not left."""
        now = self.clock()
        return any(
            p.beat >= 0 and p.farewell is None and now - p.seen_at < SILENT_SECONDS for p in self.others.values()
        )

    def awake(self) -> bool:
        """Whether this process has run on without a break for so long that it knows how old the others' beats are: on a
        busy machine it may get no processor for a while. To be asked at least each AWAKE_SECONDS.
        """
        now = self.clock()
        if now - self._ran > AWAKE_SECONDS:
            self._woke = now
        self._ran = now
        return now - self._woke >= AWAKE_SECONDS

    def silent(self, seconds: float) -> tuple[int, float] | None:
        """The rank longest without a beat and for how long, when that is over `seconds`.

        Ranks that left do not count.

        While the store does not answer, nobody's beats can be seen: then it is rank 0, whose
        process holds the store.
        """
        now = self.clock()
        if self.rank != 0 and (self.store_lost or now - self._answered > seconds):
            return 0, now - self._answered
        ages = [(now - p.seen_at, r) for r, p in self._needed() if p.beat >= 0 and p.farewell is None]
        age, rank = max(ages, default=(0.0, -1))
        return (rank, age) if age > seconds else None

    def _needed(self) -> list[tuple[int, Peer]]:
        return [(r, p) for r, p in self.others.items() if r not in self.expendable and r not in self.lost]

    def absent(self, rank: int, seconds: float) -> str | None:
        """Why a rank must be taken for lost: it gave up, or showed no beat for over `seconds`.

        None: it is there.
        """
        peer = self.others[rank]
        age = self._answered - peer.seen_at  # while the store does not answer, nobody's beats can be seen
        if peer.farewell:
            return f"it gave up: {peer.farewell['message']}"
        silent = self.awake() and peer.beat >= 0 and age > seconds and not self._stopping.is_set()
        return f"no sign of life for {age:.0f} s" if silent else None

    def go_on_without(self, lost: dict[int, str]) -> None:
        """These ranks are lost and not waited for; all others are needed from now on."""
        self.lost, self.expendable = lost, set()

    def overdue(self) -> tuple[int, float] | None:
        """A rank whose silence must end the run now, and its seconds of silence."""
        return None if not self.awake() or self._stopping.is_set() else self.silent(self.limit_seconds)

    def missing(self) -> int | None:
        """A rank that has not appeared within START_SECONDS of this one."""
        if self.clock() - self._began < START_SECONDS:
            return None
        return next((r for r, p in self.others.items() if p.beat < 0), None)

    def gone(self) -> tuple[int, str] | None:
        """A rank that gave up, or that such a rank blames, and what was said about it."""
        farewells = {r: p.farewell for r, p in self._needed() if p.farewell}
        for r, farewell in farewells.items():  # first those that failed by themselves
            if farewell["kind"] in ("own", "input"):
                return r, farewell["message"]
        for farewell in farewells.values():
            if farewell["suspect"] not in {None, self.rank, *self.expendable}:
                return farewell["suspect"], farewell["message"]
        return next(((r, farewell["message"]) for r, farewell in farewells.items()), None)

    def disagreement(self) -> tuple[int, str] | None:
        """A rank whose collective is not what most ranks began at that place of the sequence, and both, in words."""
        calls = {r: p.at[1] for r, p in self._needed() if p.at[0] == self.at[0] and r in self.alike}
        calls[self.rank] = self.at[1]
        in_order = [calls[r] for r in sorted(calls)]
        usual = max(in_order, key=in_order.count)  # of equally many, the lowest rank's
        odd = next((r for r in sorted(calls) if calls[r] != usual), None)
        return odd if odd is None else (odd, f"rank {odd} began {calls[odd]}, others {usual} (#{self.at[0]})")

    def suspect(self) -> tuple[int | None, str]:
        """After a failure: the rank most likely at fault (None: cannot be told) and the evidence.

        Waits up to EVIDENCE_SECONDS for a farewell or a silence, longer only where this process
        itself was stopped meanwhile, and never blocks on the store.
        """
        until = self.clock() + EVIDENCE_SECONDS
        latest = until + 2 * EVIDENCE_SECONDS
        while True:
            if not (awake := self.awake()):
                until = min(self.clock() + EVIDENCE_SECONDS, latest)
            if culprit := self.gone():
                return culprit
            if awake and (silence := self.silent(SILENT_SECONDS)):
                return silence[0], f"no sign of life for {silence[1]:.1f} s"
            if self.clock() > until:
                break
            time.sleep(0.1)
        alike = [(r, p) for r, p in self.others.items() if r in self.alike and r not in self.lost]
        behind = min(alike, key=lambda item: item[1].at[0], default=None)
        if behind and behind[1].at[0] < self.at[0]:
            return behind[0], f"it is alive, but still at {behind[1].at[1]} (#{behind[1].at[0]})"
        return None, "every rank is alive"
