"""The process that serves the live page of one run: python -m monitor.watch FD, started by the run's door.

FD is the listening socket. The first line of standard input holds the run's facts; its end is that of the run.
"""

import asyncio
import json
import os
import socket
import sys
import time

from monitor.watch.facts import Facts
from monitor.watch.live import Live
from monitor.watch.server import Server

IDLE_SECONDS = 60.0  # nobody has looked for so long: the door starts another process when somebody does
NICE = 10  # where the machine is full, ranks go first


async def main(listener: socket.socket, facts: Facts) -> None:
    """Serve until standard input ends, or nobody looks any more."""
    live = Live(facts)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), live.finish)
    idle = asyncio.create_task(_leave_when_idle(live))
    await Server(live).serve(listener)
    idle.cancel()


async def _leave_when_idle(live: Live) -> None:
    while live.readers or time.monotonic() - live.left < IDLE_SECONDS:
        await asyncio.sleep(IDLE_SECONDS / 10)
    live.leave()


def serve(descriptor: str) -> None:
    """Serve the run whose facts come on standard input."""
    facts = Facts(**json.loads(os.fdopen(0, "rb", buffering=0, closefd=False).readline()))
    listener = socket.socket(fileno=int(descriptor))
    listener.setblocking(False)
    os.nice(NICE)
    asyncio.run(main(listener, facts))


if __name__ == "__main__":
    serve(sys.argv[1])
