"""The server of models. Threads are settled before torch is imported.

python -m serving --store /models      # 8080 predictions, 8081 management, 8082 metrics
"""

import argparse
import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

from trainer import environment


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m serving", description="Serve exported models over HTTP.")
    parser.add_argument("--store", type=Path, required=True, help="folder of exported models")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--name", action="append", default=[], help="Host to answer for, beside localhost; repeatable")
    parser.add_argument("--port", type=int, default=8080, help="of predictions; the two above it are taken as well")
    parser.add_argument("--capacity", type=int, default=256, help="requests that may wait for a model (default 256)")
    parser.add_argument("--body-bytes", type=int, default=10 << 20, help="the largest body (default 10 MiB)")
    parser.add_argument("--body-seconds", type=float, default=30, help="time for a body to come (default 30)")
    return parser.parse_args()


def main() -> int:
    """Serve until SIGTERM. Exit codes: 0 drained, 2 a port or the store cannot be had."""
    args = arguments()
    environment.settle(environment.threads(), "lo")
    from serving.intake import Intake
    from serving.metrics import Metrics
    from serving.models import Models
    from serving.server import listen, serve
    from trainer.hosts import Hosts

    try:
        sockets = listen(args.host, [args.port + i if args.port else 0 for i in range(3)])
    except OSError as error:
        print(f"port {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    if not args.store.is_dir():
        print(f"--store {args.store}: no such folder", file=sys.stderr)
        return 2

    async def run() -> None:
        stop, metrics = asyncio.Event(), Metrics()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        ports = " ".join(str(one.getsockname()[1]) for one in sockets)
        models, intake = (
            Models(args.store, metrics, args.capacity),
            Intake(args.body_bytes, args.body_seconds, args.capacity),
        )
        ready = partial(print, f"serving on {ports}", flush=True)
        await serve(sockets, models, intake, metrics, stop, ready, Hosts(args.name, "; --name makes it known"))

    asyncio.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
