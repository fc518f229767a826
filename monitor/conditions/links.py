"""Links: what each node may send over the network during a run.

RATE=100mbit                every node's interface sends at most this, headers included
DELAY=20ms JITTER=5ms       each packet waits that long before it is sent, so a round trip takes twice the delay
LOSS=0.1%                   of the packets that are sent, lost
LINK=wan-eu-us              all of these by name (links.toml); the words above take precedence
CONGESTION=bbr              what TCP does between the nodes when a link is full; cubic where nothing else is said

Without TCP's congestion control a link would be half a condition: a machine's own is cubic (RFC 9438) or, on many
servers, bbr, which every 10 s sends next to nothing for 200 ms (BBR's ProbeRTT), and a ring waits for each.

Shaping is at every sender, on the node's own interface: what reaches a node was shaped where it was sent.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from monitor import toml
from trainer.spec import SpecError

PROFILES: dict[str, dict[str, str]] = toml.loads(Path(__file__).with_name("links.toml").read_text())
SETTINGS = {
    "LINK": f"the network between the nodes during the run, by name: {', '.join(PROFILES)}; default: as it is",
    "RATE": "what each node may send, as 100mbit; one value, or one for each node parted by commas",
    "DELAY": "how long each packet waits before it is sent, as 20ms",
    "JITTER": "how much that varies, as 5ms",
    "LOSS": "share of the packets that are lost, as 0.1%",
    "CONGESTION": "congestion control of TCP between the nodes: cubic, reno, bbr or another that the kernel has; "
    "default: cubic if any of these is set, else the engine's",
}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
LEAST_BITS, MOST_BITS = 1_000_000, 100_000_000_000  # slower ones cannot be measured within seconds
MOST_MS = 10_000.0
DEFAULT_CONGESTION = "cubic"  # Linux' own default


@dataclass(frozen=True)
class Link:
    """What a node's interface sends, and how TCP does. None and 0: as it is."""

    rate_bits: int | None = None  # bits per second, headers included
    delay_ms: float = 0.0  # one way
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    congestion: str | None = None  # control of connections to other nodes, by the kernel's name

    @property
    def needs_netem(self) -> bool:
        """Whether it is more than a rate."""
        return bool(self.delay_ms or self.jitter_ms or self.loss_percent)

    @property
    def shapes(self) -> bool:
        """Whether it is anything at all."""
        return bool(self.rate_bits or self.congestion) or self.needs_netem

    def facts(self) -> dict:
        """For results."""
        return asdict(self)


def link(settings: Mapping[str, str]) -> Link | None:
    """Of one node's settings, a value each; None without any. Raises SpecError."""
    if not settings:
        return None
    profile: dict[str, str] = {}
    if (name := settings.get("LINK")) is not None:
        if name not in PROFILES:
            raise SpecError("LINK", name, f"one of: {', '.join(PROFILES)}")
        profile = PROFILES[name]
    texts = {key.upper(): text for key, text in profile.items()} | dict(settings)
    link = Link(
        int(_amount("RATE", texts["RATE"], _BITS, LEAST_BITS, MOST_BITS, "100mbit")) if "RATE" in texts else None,
        _amount("DELAY", texts.get("DELAY", "0ms"), _MS, 0, MOST_MS, "20ms"),
        _amount("JITTER", texts.get("JITTER", "0ms"), _MS, 0, MOST_MS, "5ms"),
        _amount("LOSS", texts.get("LOSS", "0%"), {"%": 1.0}, 0, 50, "0.1%"),
        _congestion(texts.get("CONGESTION", DEFAULT_CONGESTION)),
    )
    if link.jitter_ms > link.delay_ms:
        raise SpecError("JITTER", texts["JITTER"], f"at most the delay (DELAY={texts.get('DELAY', '0ms')})")
    return link


def _congestion(text: str) -> str:
    name = text.strip().lower()
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,14}", name):
        raise SpecError("CONGESTION", text, "a congestion control that the kernel has, as cubic, reno or bbr")
    return name


def _amount(name: str, text: str, units: dict[str, float], least: float, most: float, example: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(" + "|".join(units) + ")", text.strip().lower())
    value = float(match[1]) * units[match[2]] if match else None
    if value is None or not least <= value <= most:
        unit = list(units)[len(units) // 2]
        ends = f"{least / units[unit]:g}{unit} to {most / units[unit]:g}{unit}"
        raise SpecError(name, text, f"a number with a unit ({', '.join(units)}), as {example}, from {ends}")
    return value
