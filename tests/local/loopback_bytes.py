"""`unshare -n python loopback_bytes.py DATA STEPS`: trains 3 ranks in this network namespace, prints lo's bytes."""

import fcntl
import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from ranks import Ranks

from trainer.spec import RunSpec

SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING))
with Ranks(RunSpec(nodes=3, batch=6, steps=int(sys.argv[2])), Path(sys.argv[1])) as ranks:
    ranks.finish()
(line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
print(line.split(":")[1].split()[8])  # transmitted; /proc/net follows the reader's namespace
