"""The links of a cluster's nodes: shaped from outside, by a short-lived container in the node's network namespace, and
measured from inside, before a run begins.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from docker import DockerClient
from docker.models.containers import Container

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
ATTEMPTS = 3  # to measure the links
PYTHON = "python"


class Kinds(TypedDict):
    """What the engine's kernel has: rates, delays, cuts, and congestion controls."""

    tbf: bool
    netem: bool
    blackhole: bool
    congestion: list[str]


class Measured(TypedDict):
    """What a link really does."""

    rate_bits: int  # per second, headers included
    round_trip_ms: float


def image_of(container: Container) -> str:
    """The id of the container's image."""
    image: Any = container.image  # None only for an image that the engine does not name
    return image.id


def kinds(client: DockerClient, image: str, project: str, links: Sequence[Link | None] = ()) -> Kinds:
    """What the kernel has, of congestion controls those that these links name.

    Raises RunFailed.
    """
    names = dict.fromkeys(link.congestion for link in links if link and link.congestion)
    return _helper(client, image, project, "none", "kinds", *names)


def shape(client: DockerClient, container: Container, project: str, link: Link | None, cut: Sequence[str] = ()) -> None:
    """Let the node send what the link lets through, or with None what it can; and nothing to addresses that are cut
    off, but to all others. Raises RunFailed.
    """
    argument = json.dumps({"link": link.facts() if link else None, "cut": list(cut)})
    state = _helper(client, image_of(container), project, f"container:{container.id}", argument)
    present = {qdisc["kind"] for qdisc in state["qdiscs"]}
    kinds = set()
    if link and link.needs_netem:
        kinds.add("netem")
    if link and link.rate_bits:
        kinds.add("tbf")
    if present & {"tbf", "netem"} != kinds:
        raise RunFailed(f"node {container.name}: its link has {sorted(present)} where {sorted(kinds)} was asked for")
    congestion = link and link.congestion
    if state["congestion"] != congestion:
        raise RunFailed(
            f"node {container.name}: congestion control is {state['congestion']} where {congestion} was asked for"
        )
    if sorted(state["cut"]) != sorted(cut):
        raise RunFailed(f"node {container.name} is cut off from {state['cut']} where {list(cut)} was asked for")


def _helper(client: DockerClient, image: str, project: str, network: str, *arguments: str) -> Any:
    """The JSON that node/shaping.py prints in a container of its own, in this network. Raises RunFailed."""
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
            out, err = helper.logs(stdout=True, stderr=False), helper.logs(stdout=False, stderr=True)
        finally:
            helper.remove(force=True)  # also one that could not be started
    if not out:
        raise RunFailed(f"the link could not be shaped: {sdk.one_line(err.decode(errors='replace'))}")
    answer = json.loads(out)
    if "error" in answer:
        raise RunFailed(f"the link could not be shaped: {answer['error']}")
    return answer


def take_back(
    client: DockerClient, nodes: Mapping[Container, bool], project: str, first: Container, who: str
) -> list[str]:
    """Give nodes what the cluster gave them, where a run had changed that; not while a run has them, which does it.

    `nodes`: whether each one's link is shaped. `first`: the cluster's node 0. Returns what was taken back.
    """
    changed = {
        node: shaped
        for node, shaped in nodes.items()
        if shaped or limits.wrong(container_limits.now(node), container_limits.original(node))
    }
    if not changed:
        return []
    with hold(first, who) as ours:
        if not ours:
            return []
        with ThreadPoolExecutor(len(changed)) as pool:
            lines = pool.map(lambda node: _take_back(client, node, changed[node], project), changed)
        return list(itertools.chain(*lines))


def _take_back(client: DockerClient, container: Container, shaped: bool, project: str) -> list[str]:
    lines = []
    with sdk.guard():
        container.reload()
        if container_limits.put(container, container_limits.original(container)):
            lines.append(f"a run's limits of {container.name}")
    if shaped and container.status in ("running", "paused"):  # else its interface is gone, and what shaped it
        shape(client, container, project, None)
        lines.append(f"a run's link of {container.name}")
    return lines


def refuse_unknown_kinds(links: Sequence[Link | None], kinds: Kinds, word: str = "") -> None:
    """Raise UserError for links that need what this kernel has not. `word`: where they stand, if not as settings."""
    present = [link for link in links if link]
    if not kinds["netem"] and any(link.needs_netem for link in present):
        rate = next((f"{link.rate_bits / 1e6:g}mbit" for link in present if link.rate_bits), "")
        alone = f"rate={rate or '10mbit'}" if word else f"RATE={rate}"
        would = f"{alone} alone would do" if kinds["tbf"] else "no link can be shaped here"
        text = "the engine's kernel has no netem (sch_netem), which delay, jitter and loss need"
        raise UserError(f"{word or 'DELAY, JITTER, LOSS, LINK'}: {text}; {would}")
    if not kinds["tbf"] and any(link.rate_bits for link in present):
        out = "leave it out" if word else "leave RATE and LINK out"
        raise UserError(f"{word or 'RATE'}: the engine's kernel has no tbf (sch_tbf), which it needs; {out}")
    for name in (link.congestion for link in present if link.congestion):
        if name not in kinds["congestion"]:
            has = ", ".join(kinds["congestion"])
            raise UserError(f"CONGESTION={name}: the engine's kernel has no such congestion control; it has {has}")


def verified(
    client: DockerClient, nodes: Sequence[Container], links: Sequence[Link], warn: Callable[[str], None]
) -> list[Measured]:
    """What `measure` finds, held against what was asked for. Raises RunFailed.

    On a machine that stalls for a moment a receiver may count more than the link lets through, or a ping be answered
    late, and an old engine may lose what a node said: only what is wrong each time is believed.
    """
    attempt = 1
    while True:
        try:
            figures, warnings = measure(client, nodes, links), []
            judge(links, figures, warnings.append)
        except RunFailed:
            if attempt == ATTEMPTS:
                raise
            attempt += 1
        else:
            for text in warnings:
                warn(text)
            return figures


def measure(client: DockerClient, nodes: Sequence[Container], links: Sequence[Link]) -> list[Measured]:
    """What each node really sends to the next, all at once: rate_bits (headers included); and before, round_trip_ms.

    Raises RunFailed when a node cannot tell.
    """
    following = [*nodes[1:], nodes[0]]
    buffers = [_buffer(link) for link in links]

    def ping(sender: Container, receiver: Container) -> Measured:
        return _between(client, sender, receiver, 0.0)

    def send(sender: Container, receiver: Container, buffer: int) -> Measured:
        return _between(client, sender, receiver, SECONDS, buffer)

    with ThreadPoolExecutor(len(nodes)) as pool:
        # All pings come before anything is sent: an answer would wait behind what fills its node's queue.
        pings = list(pool.map(ping, nodes, following))
        rates = list(pool.map(send, nodes, following, buffers))
    return [
        {"rate_bits": rate["rate_bits"], "round_trip_ms": ping["round_trip_ms"]}
        for ping, rate in zip(pings, rates, strict=True)
    ]


def _buffer(link: Link) -> int:
    """Bytes to give to the kernel at once, so that over a slow link they come in pieces that can be timed; 0: any."""
    segments = max(3, link.rate_bits // 320 // PAYLOAD) if link.rate_bits else 0  # of 25 ms
    return segments * PAYLOAD if link.rate_bits and link.rate_bits <= SLOW_BITS else 0


def _between(client: DockerClient, sender: Container, receiver: Container, seconds: float, buffer: int = 0) -> Measured:
    """Ping, and send for so many seconds, `buffer` bytes at a time. Raises RunFailed."""
    probe = [PYTHON, "-m", "node.probe"]
    with sdk.guard():
        serving = client.api.exec_create(receiver.id, [*probe, "serve", str(seconds)])["Id"]
        answer = client.api.exec_start(serving, stream=True)
        first = _json(next(answer, b""), receiver)
        port, host = str(first["port"]), receiver.labels["com.docker.compose.service"]
        execution: Any = sender.exec_run([*probe, "send", host, port, str(seconds), str(buffer)])
        code, out = execution
        if code:
            raise RunFailed(
                f"node {sender.name} could not measure its link: {sdk.one_line(out.decode(errors='replace'))}"
            )
        rest = b"".join(answer)
    payload = _json(rest, receiver)["bits_per_second"]
    return {"rate_bits": round(payload * FRAME / PAYLOAD), "round_trip_ms": _json(out, sender)["round_trip_ms"]}


def _json(answer: bytes, container: Container) -> dict:
    try:
        return json.loads(answer)
    except ValueError:
        text = sdk.one_line(answer.decode(errors="replace"))
        raise RunFailed(f"node {container.name} could not measure its link: {text or 'it said nothing'}") from None


def judge(links: Sequence[Link | None], figures: Sequence[Measured], warn: Callable[[str], None]) -> None:
    """Hold what was measured against what was asked for. Raises RunFailed for a link that lets more through.

    One that lets less through is warned of: the node may be the limit.
    """
    for node, (link, measured) in enumerate(zip(links, figures, strict=True)):
        if link:
            _judge_rate(node, link, measured["rate_bits"], warn)
            _judge_round_trip(node, link, links[(node + 1) % len(links)], measured["round_trip_ms"], warn)


def _judge_rate(node: int, link: Link, rate_bits: int, warn: Callable[[str], None]) -> None:
    if not link.rate_bits:
        return
    share = rate_bits / link.rate_bits
    text = f"node {node} sends {rate_bits / 1e6:.4g} Mbit/s where RATE={link.rate_bits / 1e6:g}mbit"
    if share > 1 + SLACK:
        raise RunFailed(f"{text} was asked for: the link is not shaped as it should be")
    if share < 1 - SLACK:
        warn(f"{text} would let more through: its CPU, or the next node's, is the limit")


def _judge_round_trip(
    node: int, link: Link, back: Link | None, round_trip_ms: float, warn: Callable[[str], None]
) -> None:
    """`back`: the link of the next node, which answers."""
    delay = link.delay_ms + (back.delay_ms if back else 0)
    jitter = link.jitter_ms + (back.jitter_ms if back else 0)
    text = f"{round_trip_ms:.3g} ms where {delay:g} ms were asked for"
    if round_trip_ms < delay * (1 - SLACK) - jitter:
        raise RunFailed(f"node {node}: a round trip takes {text}: the link is not shaped as it should be")
    if delay and round_trip_ms > delay * (1 + SLACK) + SLACK_MS + 4 * jitter:
        warn(f"node {node}: a round trip takes {text}")
