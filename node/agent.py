"""The node's agent: its CPU, memory, network and live training figures at /metrics, for Prometheus.

    python -m node.agent                                      # main process of a node's container, port 9400
    python -m node.agent --port 0 --node local-0 --process 1234 --watch-stdin   # a node that is one process tree

Prints one JSON line {"port": n} once it listens. GET /targets lists all nodes of the cluster, for Prometheus' http_sd,
when WORLD_SIZE is set. Every metric is described in docs/reference/metrics.md. It answers to the node's name, its
addresses and localhost, and to no page of another site (trainer/hosts.py). SIGTERM ends it at once.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast

from node import cgroup
from node.exposition import CONTENT_TYPE, Series, page, series
from node.training_metrics import TrainingCollector
from trainer.hosts import Hosts, Refusal

PORT = 9400
METRICS_FOLDER = Path("/run/syncbed/metrics")
_NODE_METRICS = (  # (name, attribute of cgroup.Usage, help); a name that ends in _total is a counter
    ("cpu_throttled_seconds_total", "cpu_throttled_seconds", "Time in which tasks waited for their CPU quota."),
    ("cpu_periods_total", "cpu_periods", "CPU quota enforcement periods that have passed."),
    ("cpu_throttled_periods_total", "cpu_throttled_periods", "Enforcement periods in which tasks were throttled."),
    ("cpu_limit_cores", "cpu_limit_cores", "CPU quota in cores; absent without one."),
    ("memory_working_set_bytes", "memory_working_set_bytes", "Memory usage minus inactive file cache."),
    ("memory_usage_bytes", "memory_usage_bytes", "Memory usage with page cache."),
    ("memory_peak_bytes", "memory_peak_bytes", "Highest memory usage since the node started, page cache included."),
    ("memory_limit_bytes", "memory_limit_bytes", "Memory limit; absent without one."),
    ("oom_kills_total", "oom_kills", "Processes killed by the memory limit."),
    ("processes", "processes", "Processes in the node."),
    ("open_files", "open_files", "File descriptors that the node's processes have open."),
)
_NETWORK_METRICS = tuple(  # (name, help, attribute of cgroup.Interface)
    (f"network_{direction}_{counted}_total", f"Network {counted}, {direction} side.", f"{direction}_{counted}")
    for direction in ("receive", "transmit")
    for counted in ("bytes", "packets", "errors", "drops")
)


class NodeCollector:
    """Turns readings of a node into metrics. A value that is not known is left out, never 0."""

    def __init__(self, info: dict[str, str], read_usage, read_network):
        self._info, self._read_usage, self._read_network = info, read_usage, read_network

    def samples(self) -> Iterator[tuple[Series, float]]:
        """One reading of the node."""
        text = "Always 1; the labels say which node this is and what its figures are of."
        yield _series("info", text, *self._info.items()), 1
        usage = self._read_usage()
        for mode, seconds in (("user", usage.cpu_user_seconds), ("system", usage.cpu_system_seconds)):
            if seconds is not None:
                yield _series("cpu_seconds_total", "CPU time used, by mode.", ("mode", mode)), seconds
        for name, attribute, text in _NODE_METRICS:
            if (value := getattr(usage, attribute)) is not None:
                yield _series(name, text), value
        interfaces = self._read_network()
        for name, text, attribute in _NETWORK_METRICS:
            for interface, counters in interfaces.items():
                yield _series(name, text, ("interface", interface)), getattr(counters, attribute)


@lru_cache(maxsize=1024)
def _series(name: str, text: str, *labels: tuple[str, str]) -> Series:
    name = f"syncbed_node_{name}"
    kind = "counter" if name.endswith("_total") else "gauge"
    return series(kind, name.removesuffix("_total"), text, name, labels)


def container_network() -> dict[str, cgroup.Interface]:
    """Every interface but the loopback."""
    return {name: counters for name, counters in cgroup.read_network().items() if name != "lo"}


def loopback_network() -> dict[str, cgroup.Interface]:
    """The loopback alone, which all nodes without a container share."""
    return {name: counters for name, counters in cgroup.read_network().items() if name == "lo"}


def targets(world_size: int, port: int) -> list[dict]:
    """All nodes of the cluster in the format of Prometheus' http_sd."""
    return [{"targets": [f"trainer-{rank}:{port}" for rank in range(world_size)], "labels": {"job": "node"}}]


class Server(ThreadingHTTPServer):
    """Answers GET /metrics, and GET /targets when the size of the cluster is known."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], collectors: list, world_size: int | None, hosts: Hosts):
        self._collectors, self._world_size, self.hosts = collectors, world_size, hosts
        self._lock = threading.Lock()  # collectors remember things from one scrape to the next
        super().__init__(address, _Handler)

    def page(self, path: str) -> tuple[int, str, bytes]:
        """(status, content type, body) of a page."""
        if path == "/metrics":
            with self._lock:
                samples = (sample for collector in self._collectors for sample in collector.samples())
                return 200, CONTENT_TYPE, page(samples)
        if path == "/targets" and self._world_size is not None:
            return 200, "application/json", json.dumps(targets(self._world_size, self.server_port)).encode()
        return 404, "text/plain", b"not found; there is /metrics\n"

    def handle_error(self, request, client_address):
        """A client that hung up is no news; anything else is one line, and the next request is served."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"agent: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Prometheus keeps its connection, so that no thread is started per scrape
    wbufsize = 2**16  # head and body leave in one packet
    timeout = 60  # seconds an idle connection is kept
    server_version, sys_version = "syncbed-agent", ""

    def do_GET(self):
        server = cast(Server, self.server)
        try:
            if refused := self._refusal(server.hosts):
                status, kind, body = refused.status, "text/plain", f"{refused.message}\n".encode()
            else:
                status, kind, body = server.page(self.path.partition("?")[0])
        except Exception as error:  # one bad reading must not end the agent
            status, kind, body = 500, "text/plain", f"{type(error).__name__}: {error}\n".encode()
            print(f"agent: {body.decode().strip()}", file=sys.stderr, flush=True)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refusal(self, hosts: Hosts) -> Refusal | None:
        headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()]
        return hosts.refusal(headers, self.request_version.removeprefix("HTTP/"), self.connection.getsockname()[0])

    def log_message(self, format: str, *args) -> None:
        """Silent: a line per scrape would be all there is to read in `make logs`."""


def build(node: str, processes: list[int], port: int, world_size: int | None, folder: Path) -> Server:
    """The agent's server, bound but not yet serving. Raises OSError when the port cannot be had."""
    if not processes:
        node_collector = NodeCollector({"name": node, "source": "cgroup"}, cgroup.read, container_network)
    else:
        from node.process_tree import ProcessTree

        info = {"name": node, "source": "process"}
        node_collector = NodeCollector(info, ProcessTree(processes).read, loopback_network)
    collectors = [node_collector, TrainingCollector(folder)]
    return Server(("127.0.0.1" if processes else "0.0.0.0", port), collectors, world_size, Hosts([node]))


def main(arguments: list[str] | None = None) -> int:
    """Serve until a signal, or the end of standard input with --watch-stdin."""
    args = _parse(arguments)
    folder = Path(os.environ.get("PROMETHEUS_MULTIPROC_DIR") or METRICS_FOLDER)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # nothing to save, so nothing to wait for
    try:
        server = build(args.node, args.process, args.port, args.world_size, folder)
    except (OSError, OverflowError) as error:
        print(f"agent: port {args.port} cannot be had: {error}", file=sys.stderr)
        return 1
    if args.watch_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    gc.freeze()  # what there is by now stays, so no collection between scrapes looks through it again
    print(json.dumps({"port": server.server_port}), flush=True)
    server.serve_forever(poll_interval=3600)  # nobody asks it to stop: a signal ends the process
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; and `world_size` from the environment, None where it does not say."""
    parser = argparse.ArgumentParser(prog="python -m node.agent", description="Serve this node's metrics.")
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on; 0: any free one (default {PORT})")
    name = os.environ.get("NODE_NAME") or socket.gethostname()
    parser.add_argument("--node", default=name, help="this node's name (default NODE_NAME, else the host's name)")
    watched = "watch this process and its descendants, no cgroup; may be given again"
    parser.add_argument("--process", type=int, metavar="PID", action="append", default=[], help=watched)
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input closes")
    args = parser.parse_args(arguments)
    size = os.environ.get("WORLD_SIZE")
    if size is not None and not (size.isdigit() and int(size) > 0):
        parser.error(f"WORLD_SIZE={size}: a whole number from 1")
    args.world_size = int(size) if size else None
    return args


def _end_with_stdin():
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
