"""Faults as data: what is done to ranks and nodes while a run goes on, and when.

FAULT="kill:2@step=20"                       rank 2 is killed (SIGKILL)
FAULT="freeze:1@10s+5s"                      rank 1 is stopped (SIGSTOP) for 5 s; without + for good, as all that last
FAULT="slow:3@step=50+10s,cpus=0.1"          node 3 has a tenth of a core
FAULT="link:3@step=10,rate=10mbit,delay=20ms"    node 3's link, in the words of links.py
FAULT="partition:0,1|2,3@10s+5s"             nodes 0 and 1 and nodes 2 and 3 do not reach each other
FAULT="restart:2@step=5"                     node 2's container is killed and started again
FAULT="slow:3@5s,cpus=0.1; kill:2@step=20"   several

A step counts once the first worker has done it, seconds from the beginning of the first step. injection.py does it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from monitor.conditions import links
from monitor.conditions.links import Link
from trainer.layout import seats
from trainer.spec import RunSpec, SpecError

SETTING, NONE = "FAULT", "none"
SETTINGS = {
    SETTING: "what is done to ranks and nodes meanwhile, as kill:2@step=20 or freeze:1@10s+5s; several parted by ; "
    "(lists of a sweep by slashes); default: none"
}
OF_RANKS = ("kill", "freeze")
AT_ONCE = ("kill", "restart")  # the others last
KINDS = (*OF_RANKS, "slow", "link", "partition", "restart")
EXAMPLES = {
    "kill": "kill:2@step=20 (a rank)",
    "freeze": "freeze:1@10s+5s (a rank)",
    "slow": "slow:3@step=50+10s,cpus=0.1 (a node)",
    "link": "link:3@step=10+5s,rate=10mbit,delay=20ms (a node)",
    "partition": "partition:0,1|2,3@10s+5s (nodes)",
    "restart": "restart:2@step=5 (a node)",
}
LEAST_CORES = 0.05
_SECONDS = r"[0-9]{1,6}(?:\.[0-9]{1,3})?"
_FORM = re.compile(
    r"(?P<kind>[a-z]+):(?P<targets>[0-9]{1,4}(?:[,|][0-9]{1,4})*)"
    rf"@(?:step=(?P<step>[0-9]{{1,9}})|(?P<at>{_SECONDS})s)(?:\+(?P<lasts>{_SECONDS})s)?"
    r"(?P<options>(?:,[a-z]+=[^,;=]+)*)"
)


@dataclass(frozen=True)
class Fault:
    """One fault. `groups`: ((2,),) for rank or node 2, several groups of nodes of a partition. Either `step` or
    `at_seconds`; `lasts_seconds` None: for good. `options`: words and their values, as they were given.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    step: int | None = None
    at_seconds: float | None = None
    lasts_seconds: float | None = None
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        targets = "|".join(",".join(map(str, group)) for group in self.groups)
        when = f"step={self.step}" if self.at_seconds is None else f"{_number(self.at_seconds)}s"
        lasts = "" if self.lasts_seconds is None else f"+{_number(self.lasts_seconds)}s"
        return f"{self.kind}:{targets}@{when}{lasts}" + "".join(f",{name}={text}" for name, text in self.options)

    @property
    def target(self) -> int:
        """The rank or node."""
        return self.groups[0][0]

    @property
    def cpus(self) -> float:
        """Cores that a slow node is left with."""
        return float(dict(self.options)["cpus"])

    @property
    def link(self) -> Link:
        """What a node's link becomes; its connections stand, and keep their congestion control. Raises SpecError."""
        link = links.link({name.upper(): text for name, text in self.options})
        return replace(link or Link(), congestion=None)


def of(settings: Mapping[str, str], spec: RunSpec) -> tuple[Fault, ...]:
    """The faults that FAULT= names, which this run can have. Raises SpecError."""
    text = settings.get(SETTING, NONE)
    if text.strip() == NONE:
        return ()
    faults = tuple(_fault(part.strip(), spec) for part in text.split(";"))
    for one, other in combinations(faults, 2):
        if one == other:
            raise SpecError(SETTING, text, f"{one} stands there twice")
        if _overlap(one, other):
            raise SpecError(SETTING, text, f"{one} and {other} may overlap; give both in seconds, one after the other")
    return faults


def in_time(faults: Iterable[Fault], before: int, last: int) -> None:
    """Raise SpecError for a fault whose step never comes, where a run does steps `before` + 1 to `last`."""
    for fault in faults:
        if fault.step is not None and not before < fault.step <= last:
            raise SpecError(SETTING, fault, f"the run does steps {before + 1} to {last}")


def _fault(text: str, spec: RunSpec) -> Fault:
    match = _FORM.fullmatch(text)
    kind = match["kind"] if match else text.split(":")[0]
    if kind not in KINDS or not match:
        raise SpecError(SETTING, text, "as " + (EXAMPLES.get(kind) or ", ".join(EXAMPLES.values())))
    groups = tuple(tuple(map(int, group.split(","))) for group in match["targets"].split("|"))
    fault = Fault(
        kind,
        groups,
        int(match["step"]) if match["step"] else None,
        float(match["at"]) if match["at"] else None,
        float(match["lasts"]) if match["lasts"] else None,
        tuple(_option(option) for option in match["options"].split(",")[1:]),
    )
    _check_targets(fault, text, spec)
    _check_time(fault, text, spec)
    _check_options(fault, text)
    return fault


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _check_targets(fault: Fault, text: str, spec: RunSpec) -> None:
    targets = [target for group in fault.groups for target in group]
    if fault.kind == "partition":
        if len(fault.groups) < 2 or len(set(targets)) < len(targets):
            raise SpecError(SETTING, text, f"two groups of nodes or more, each node once: {EXAMPLES['partition']}")
    elif len(targets) > 1:
        raise SpecError(SETTING, text, f"one target: {EXAMPLES[fault.kind]}")
    what, count = ("ranks", len(seats(spec))) if fault.kind in OF_RANKS else ("nodes", spec.nodes)
    if max(targets) >= count:
        raise SpecError(SETTING, text, f"the run has {what} 0 to {count - 1}")


def _check_time(fault: Fault, text: str, spec: RunSpec) -> None:
    if fault.step is not None and not 1 <= fault.step <= (spec.steps or fault.step):
        raise SpecError(SETTING, text, f"a step from 1 to {spec.steps or 'the last'}")
    if fault.lasts_seconds is not None and fault.kind in AT_ONCE:
        raise SpecError(SETTING, text, f"{fault.kind} happens at once: {EXAMPLES[fault.kind]}")
    if fault.lasts_seconds == 0:
        raise SpecError(SETTING, text, "it has to last; without + it does so for good")


def _check_options(fault: Fault, text: str) -> None:
    words = [name for name, _ in fault.options]
    shaping = {name.lower() for name in links.SETTINGS} - {"congestion"}
    option_names = {"slow": {"cpus"}, "link": shaping}.get(fault.kind, set())
    lacks = bool(option_names) and not words
    if not set(words) <= option_names or len(set(words)) < len(words) or lacks:
        raise SpecError(SETTING, text, f"as {EXAMPLES[fault.kind]}")
    if fault.kind == "slow":
        number = re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?|\.[0-9]{1,3}", fault.options[0][1])
        if not number or fault.cpus < LEAST_CORES:
            raise SpecError(SETTING, text, f"cpus is a number of cores from {LEAST_CORES}, as 0.1")
    if fault.kind == "link":
        try:
            shapes = fault.link.shapes
        except SpecError as error:
            raise SpecError(SETTING, text, str(error)) from None
        if not shapes:
            raise SpecError(SETTING, text, f"a link that shapes something: {EXAMPLES['link']}")


def at_one_place(one: Fault, other: Fault) -> bool:
    """Whether both last, and change the same thing: one must have been taken back before the other begins."""
    return (
        one.kind == other.kind and one.kind not in AT_ONCE and (one.kind == "partition" or one.groups == other.groups)
    )


def _overlap(one: Fault, other: Fault) -> bool:
    """Whether two that last may be in force at one place at once: the end of the first would take back the second."""
    if not at_one_place(one, other):
        return False
    if one.at_seconds is None or other.at_seconds is None:
        return True
    begins, lasts, next_begins = (
        (one.at_seconds, one.lasts_seconds, other.at_seconds)
        if one.at_seconds <= other.at_seconds
        else (other.at_seconds, other.lasts_seconds, one.at_seconds)
    )
    return lasts is None or begins + lasts > next_begins


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
