"""The links of a cluster's nodes: shaped from outside, by a short-lived container in the node's network namespace, and
measured from inside, before a run begins.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from docker import DockerClient

from monitor.conditions.links import Link
from monitor.engine import container_limits, naming, sdk
from monitor.errors import RunFailed, UserError
from monitor.runtime.hold import hold
from node import limits

FRAME, PAYLOAD = 1514, 1448  # bytes: a full TCP segment as tbf counts it, and what it carries (MTU 1500, time stamps)
SECONDS = 1.0  # of sending that are measured
SLOW_BITS = 20_000_000  # up to this a piece of 64 kB, the largest that is handed on at once, takes too long
SLACK = 0.05  # that a measured rate or round trip may be off
SLACK_MS = 2.0  # of a round trip through two busy nodes
PYTHON = "python"


def kinds(client: DockerClient, image: str, project: str, links: Sequence[Link | None] = ()) -> dict:
    """Whether the kernel has tbf, netem and blackhole routes, and `congestion`: the controls it has, for these links.

    Raises RunFailed.
    """
    names = dict.fromkeys(link.congestion for link in links if link and link.congestion)
    return _helper(client, image, project, "none", "kinds", *names)


def shape(client: DockerClient, container, project: str, link: Link | None, cut: Sequence[str] = ()) -> None:
    """Let the node send what the link lets through, or with None what it can; and nothing to addresses that are cut
    off, but to all others. Raises RunFailed.
    """
    argument = json.dumps({"link": link.facts() if link else None, "cut": list(cut)})
    done = _helper(client, container.image.id, project, f"container:{container.id}", argument)
    there = {qdisc["kind"] for qdisc in done["qdiscs"]}
    wanted = {"netem": link and link.needs_netem, "tbf": link and link.rate_bits}
    wanted = {kind for kind, asked in wanted.items() if asked}
    if there & {"tbf", "netem"} != wanted:
        raise RunFailed(f"node {container.name}: its link has {sorted(there)} where {sorted(wanted)} was asked for")
    if done["congestion"] != (link and link.congestion):
        raise RunFailed(
            f"node {container.name}: congestion control is {done['congestion']} where {link and link.congestion} was "
            "asked for"
        )
    if sorted(done["cut"]) != sorted(cut):
        raise RunFailed(f"node {container.name} is cut off from {done['cut']} where {list(cut)} was asked for")


def _helper(client: DockerClient, image: str, project: str, network: str, *arguments: str) -> dict:
    with sdk.guard():
        helper = client.containers.create(
            image,
            [PYTHON, "-m", "node.shaping", *arguments],
            network_mode=network,
            user="0",
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN"],
            security_opt=["no-new-privileges:true"],
            read_only=True,
            labels={naming.PROJECT_LABEL: project},
        )
        try:
            helper.start()
            helper.wait()
            out, err = (helper.logs(stdout=mine, stderr=not mine) for mine in (True, False))
        finally:
            helper.remove(force=True)  # also one that could not be started
    if not out:
        raise RunFailed(f"the link could not be shaped: {sdk.one_line(err.decode(errors='replace'))}")
    told = json.loads(out)
    if "error" in told:
        raise RunFailed(f"the link could not be shaped: {told['error']}")
    return told


def take_back(client: DockerClient, nodes: dict, project: str, first, who: str) -> list[str]:
    """Give nodes what the cluster gave them, where a run had changed that; not while a run has them, which does it.

    `nodes`: whether each one's link is shaped. `first`: the cluster's node 0. Returns what was taken back.
    """
    changed = {
        c: shaped
        for c, shaped in nodes.items()
        if shaped or limits.wrong(container_limits.now(c), container_limits.own(c))
    }
    if not changed:
        return []
    with hold(first, who) as ours:
        if not ours:
            return []
        with ThreadPoolExecutor(len(changed)) as pool:
            done = pool.map(lambda node: _take_back(client, *node, project), changed.items())
        return list(itertools.chain(*done))


def _take_back(client: DockerClient, container, shaped: bool, project: str) -> list[str]:
    done = []
    with sdk.guard():
        container.reload()
        if container_limits.put(container, container_limits.own(container)):
            done.append(f"a run's limits of {container.name}")
    if shaped and container.status in ("running", "paused"):  # else its interface is gone, and what shaped it
        shape(client, container, project, None)
        done.append(f"a run's link of {container.name}")
    return done


def refuse_unknown_kinds(links: list[Link | None], there: dict, word: str = "") -> None:
    """Raise UserError for links that need what this kernel has not. `word`: where they stand, if not as settings."""
    if not there["netem"] and any(link and link.needs_netem for link in links):
        rate = next((f"{link.rate_bits / 1e6:g}mbit" for link in links if link and link.rate_bits), "")
        alone = f"rate={rate or '10mbit'}" if word else f"RATE={rate}"
        would = f"{alone} alone would do" if there["tbf"] else "no link can be shaped here"
        text = "the engine's kernel has no netem (sch_netem), which delay, jitter and loss need"
        raise UserError(f"{word or 'DELAY, JITTER, LOSS, LINK'}: {text}; {would}")
    if not there["tbf"] and any(link and link.rate_bits for link in links):
        out = "leave it out" if word else "leave RATE and LINK out"
        raise UserError(f"{word or 'RATE'}: the engine's kernel has no tbf (sch_tbf), which it needs; {out}")
    for name in (link.congestion for link in links if link and link.congestion):
        if name not in there["congestion"]:
            has = ", ".join(there["congestion"])
            raise UserError(f"CONGESTION={name}: the engine's kernel has no such congestion control; it has {has}")


def verified(client: DockerClient, containers: list, links: list[Link], warn: Callable[[str], None]) -> list[dict]:
    """What `measure` found, held against what was asked for. Raises RunFailed.

    On a machine that stalls for a moment a receiver may count more than the link lets through, or a ping be answered
    late, and an old engine may lose what a node said: only what is wrong each time is believed.
    """
    for last in (False, False, True):
        try:
            found, told = measure(client, containers, links), []
            judge(links, found, told.append)
            break
        except RunFailed:
            if last:
                raise
    for text in told:
        warn(text)
    return found


def measure(client: DockerClient, containers: list, links: list[Link]) -> list[dict]:
    """What each node really sends to the next, all at once: rate_bits (headers included); and before, round_trip_ms.

    Raises RunFailed when a node cannot tell.
    """
    pairs = list(zip(containers, containers[1:] + containers[:1], strict=True))
    with ThreadPoolExecutor(len(containers)) as pool:
        # All pings come before anything is sent: an answer would wait behind what fills its node's queue.
        pings = list(pool.map(lambda pair: _between(client, *pair, 0.0), pairs))
        buffers = [_buffer(link) for link in links]
        rates = list(pool.map(lambda pair, buffer: _between(client, *pair, SECONDS, buffer), pairs, buffers))
    return [
        {"rate_bits": rate["rate_bits"], "round_trip_ms": ping["round_trip_ms"]}
        for ping, rate in zip(pings, rates, strict=True)
    ]


def _buffer(link: Link) -> int:
    """Bytes to give to the kernel at once, so that over a slow link they come in pieces that can be timed; 0: any."""
    segments = max(3, link.rate_bits // 320 // PAYLOAD) if link.rate_bits else 0  # of 25 ms
    return segments * PAYLOAD if link.rate_bits and link.rate_bits <= SLOW_BITS else 0


def _between(client: DockerClient, sender, receiver, seconds: float, buffer: int = 0) -> dict:
    probe = [PYTHON, "-m", "node.probe"]
    with sdk.guard():
        serving = client.api.exec_create(receiver.id, [*probe, "serve", str(seconds)])["Id"]
        said = client.api.exec_start(serving, stream=True)
        first = _json(next(said, b""), receiver)
        port, host = str(first["port"]), receiver.labels["com.docker.compose.service"]
        code, out = sender.exec_run([*probe, "send", host, port, str(seconds), str(buffer)])
        if code:
            raise RunFailed(
                f"node {sender.name} could not measure its link: {sdk.one_line(out.decode(errors='replace'))}"
            )
        rest = b"".join(said)
    payload = _json(rest, receiver)["bits_per_second"]
    return {"rate_bits": round(payload * FRAME / PAYLOAD), "round_trip_ms": _json(out, sender)["round_trip_ms"]}


def _json(said: bytes, container) -> dict:
    try:
        return json.loads(said)
    except ValueError:
        text = sdk.one_line(said.decode(errors="replace"))
        raise RunFailed(f"node {container.name} could not measure its link: {text or 'it said nothing'}") from None


def judge(links: list[Link | None], found: list[dict], warn: Callable[[str], None]) -> None:
    """Hold what was measured against what was asked for. Raises RunFailed for a link that lets more through.

    One that lets less through is warned of: the node may be the limit.
    """
    for node, (link, seen) in enumerate(zip(links, found, strict=True)):
        if link is None:
            continue
        if link.rate_bits:
            share = seen["rate_bits"] / link.rate_bits
            told = f"node {node} sends {seen['rate_bits'] / 1e6:.4g} Mbit/s where RATE={link.rate_bits / 1e6:g}mbit"
            if share > 1 + SLACK:
                raise RunFailed(f"{told} was asked for: the link is not shaped as it should be")
            if share < 1 - SLACK:
                warn(f"{told} would let more through: its CPU, or the next node's, is the limit")
        other = links[(node + 1) % len(links)]
        delay, jitter = (getattr(link, f) + (getattr(other, f) if other else 0) for f in ("delay_ms", "jitter_ms"))
        if seen["round_trip_ms"] < delay * (1 - SLACK) - jitter:
            text = f"{seen['round_trip_ms']:.3g} ms where {delay:g} ms were asked for"
            raise RunFailed(f"node {node}: a round trip takes {text}: the link is not shaped as it should be")
        if delay and seen["round_trip_ms"] > delay * (1 + SLACK) + SLACK_MS + 4 * jitter:
            warn(f"node {node}: a round trip takes {seen['round_trip_ms']:.3g} ms where {delay:g} ms were asked for")
