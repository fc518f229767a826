"""`unshare -n python loopback_wire.py`: each collective of the wire among 3 ranks, in this network namespace.

Prints JSON: for each collective the bytes all ranks counted as sent, as received, and those that lo transmitted: the
least of some rounds. On a busy machine acknowledgements come late and TCP sends parts again, which only ever adds.
"""

import fcntl
import json
import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from group import Group

N, ROUNDS, ELEMENTS = 3, 5, 2_000_001  # 8 MB, no multiple of 3 elements
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40


def bring_up() -> None:
    """Switch the namespace's loopback interface on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING))


def transmitted() -> int:
    """Bytes that lo has carried; /proc/net follows the reader's namespace."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def counted(wire, name: str) -> tuple[int, int]:
    """One collective; what this rank sent and received."""
    import torch

    tensor, after, before = torch.zeros(ELEMENTS), (wire.rank + 1) % N, (wire.rank - 1) % N
    if name == "scatter":
        wire.scatter(tensor, [tensor] * N if wire.rank == 0 else [])
    elif name == "exchange":
        wire.exchange(tensor, after, torch.empty_like(tensor), before, "an exchange")
    else:
        getattr(wire, name)(tensor)
    return wire.take_bytes()


if __name__ == "__main__":
    bring_up()
    group, found = Group(N), {}
    group.run(counted, "all_reduce")
    for name in ("all_reduce", "broadcast", "all_gather", "gather", "scatter", "exchange"):
        carried = []
        for _ in range(ROUNDS):
            before = transmitted()
            ranks = group.run(counted, name)
            carried.append(transmitted() - before)
        found[name] = [sum(sent for sent, _ in ranks), sum(received for _, received in ranks), min(carried)]
    group.stop()
    print(json.dumps(found))
