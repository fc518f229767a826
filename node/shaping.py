"""Shape what a node sends, or cut it off: run in a short-lived container of its own, in the node's network namespace.

    python -m node.shaping '{"link": {"rate_bits": 100000000, "delay_ms": 20, "jitter_ms": 0, "loss_percent": 0,
                                         "congestion": "cubic"},
                                "cut": ["172.18.0.3"]}'          the node's link, and addresses that it does not reach
    python -m node.shaping '{"link": null, "cut": []}'        take all back
    python -m node.shaping kinds cubic    what of tbf, netem, blackhole and congestion controls this kernel has (in a
                                             namespace nobody needs); those named are loaded if they can be

Prints one JSON object. The node itself never may do this (no CAP_NET_ADMIN). Rates by tbf, all else by netem under it:
tc-tbf(8), tc-netem(8). Congestion control is set on the route to the node's network, ip-route(8), as a namespace's
default may only be one that the host allows to all; it holds for connections that are opened from then on. An address
is cut off by a blackhole route to it: what is sent there is dropped, on connections that stand too, as their route is
looked up anew when routes change. Cut at both ends nothing arrives.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

LATENCY_MS = 50  # a packet that would wait longer for its turn is dropped, as in a switch's buffer
LEAST_BURST_BYTES = 64 << 10  # the largest packet that segmentation offload hands down
BURST_SECONDS = 0.004  # what may be sent at once after a pause; less is not kept by a timer of 250 Hz
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
NETEM_PACKETS = 100_000  # in flight; netem's default of 1000 would drop what a long fast link holds


def main(argument: str, *names: str) -> dict:
    """What was asked for was done: the facts, or `error` in one line."""
    try:
        return kinds(names) if argument == "kinds" else put(**json.loads(argument))
    except FileNotFoundError:
        return {"error": "there is no tc in the node image; one that apt-get can install iproute2 into has it"}
    except subprocess.CalledProcessError as error:
        return {"error": " ".join((error.stderr or error.stdout).split()) or f"tc ended with {error.returncode}"}


def put(link: dict | None, cut: list[str]) -> dict:
    """Bring about this and nothing else; returns what the kernel then says of it."""
    return shape(link) | {"cut": cut_off(cut)}


def cut_off(addresses: list[str]) -> list[str]:
    """Let nothing be sent to these, and to all others again; returns those that the kernel then drops."""
    for address in _blackholes():
        _run("ip", "route", "del", "blackhole", address)
    for address in addresses:
        _run("ip", "route", "add", "blackhole", address)
    return _blackholes()


def _blackholes() -> list[str]:
    return [line.split()[1] for line in _run("ip", "route", "show", "type", "blackhole").splitlines()]


def shape(link: dict | None) -> dict:
    """Put the link on the interface, or take it off; returns what the kernel then says of it."""
    interface = next(path.name for path in sorted(Path("/sys/class/net").iterdir()) if path.name != "lo")
    if any(qdisc["kind"] in ("tbf", "netem") for qdisc in _qdiscs(interface)):
        _tc("qdisc", "del", "dev", interface, "root")
    if link:
        for command in tc_commands(interface, link):
            _tc(*command)
    control = govern(interface, link["congestion"] if link else None)
    return {"interface": interface, "qdiscs": _qdiscs(interface), "congestion": control}


def govern(interface: str, congestion: str | None) -> str | None:
    """Let connections to the interface's own network have this congestion control, with None the host's; returns what
    the kernel then says of it.
    """
    show = ("ip", "route", "show", "dev", interface, "scope", "link")
    control = ["congctl", congestion] if congestion else []
    for route in _run(*show).splitlines():
        if route.split()[-2:] != control and (control or "congctl" in route):
            _run("ip", "route", "change", *route.partition(" congctl ")[0].split(), "dev", interface, *control)
    controls = {route.partition(" congctl ")[2].strip() or None for route in _run(*show).splitlines()}
    return controls.pop() if len(controls) == 1 else None


def tc_commands(interface: str, link: dict) -> list[list[str]]:
    """The arguments of tc: netem at the root, where there is more than a rate, and tbf under it or in its place."""
    commands, place = [], ["root"]
    if link["delay_ms"] or link["jitter_ms"] or link["loss_percent"]:
        netem = ["netem", "limit", str(NETEM_PACKETS), "delay", f"{link['delay_ms']:g}ms"]
        if link["jitter_ms"]:
            netem.append(f"{link['jitter_ms']:g}ms")
        if link["loss_percent"]:
            netem += ["loss", f"{link['loss_percent']:g}%"]
        commands.append(["qdisc", "add", "dev", interface, "root", "handle", "1:", *netem])
        place = ["parent", "1:1", "handle", "10:"]
    if link["rate_bits"]:
        burst = max(LEAST_BURST_BYTES, int(link["rate_bits"] / 8 * BURST_SECONDS))
        tbf = ["tbf", "rate", f"{link['rate_bits']}bit", "burst", f"{burst}b", "latency", f"{LATENCY_MS}ms"]
        commands.append(["qdisc", "add", "dev", interface, *place, *tbf])
    return commands


def kinds(names: Iterable[str]) -> dict:
    """Whether the kernel has each kind, found by trying it on the loopback of this namespace; and `congestion`: which
    controls it has, of those named and those that are loaded.
    """
    root = ("tc", "qdisc", "replace", "dev", "lo", "root")
    controls = set(AVAILABLE.read_text().split()) if AVAILABLE.exists() else set()  # older kernels hide it here
    for name in names:
        if _works("ip", "route", "replace", "192.0.2.2", "dev", "lo", "congctl", name):
            controls.add(name)
    return {
        "tbf": _works(*root, "tbf", "rate", "1mbit", "burst", "10kb", "latency", "50ms"),
        "netem": _works(*root, "netem", "delay", "1ms"),
        "blackhole": _works("ip", "route", "replace", "blackhole", "192.0.2.1"),
        "congestion": sorted(controls),
    }


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _qdiscs(interface: str) -> list[dict]:
    return json.loads(_tc("-j", "qdisc", "show", "dev", interface))


def _tc(*arguments: str) -> str:
    return _run("tc", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
