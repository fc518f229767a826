"""How fast a link is: measured inside a node, over TCP, with nothing of the trainer.

python -m node.probe serve SECONDS       print {"port": n}; take one peer, answer its pings, take in what it sends,
                                            then print {"bits_per_second": payload}
python -m node.probe send HOST PORT SECONDS BUFFER    ping, then send for so long, or longer over a link so slow that
                                            little comes; print {"round_trip_ms": median}. BUFFER: bytes given to the
                                            kernel at once, 0: as many as it takes
"""

import json
import socket
import statistics
import sys
import time

PINGS = 9
LEFT_OUT = 0.4  # share of the time that is not measured: the burst that a pause has saved up, and TCP's slow start
CHUNK = bytes(1 << 16)
ENOUGH = 5  # pieces that have to come: a slow link hands on up to 64 kB at once, then nothing for a while
LONGEST_SECONDS = 15.0  # that are waited for them
DEADLINE_SECONDS = 20.0


def serve(seconds: float) -> None:
    """The receiving end."""
    with socket.create_server(("", 0)) as server:
        server.settimeout(DEADLINE_SECONDS)
        print(json.dumps({"port": server.getsockname()[1]}), flush=True)
        peer, _ = server.accept()
    with peer:
        peer.settimeout(DEADLINE_SECONDS)
        for _ in range(PINGS):
            peer.sendall(peer.recv(1))
        first = peer.recv(len(CHUNK))
        began = time.perf_counter()
        start, received, last, pieces = None, 0, began, 0
        while first and (count := len(peer.recv(len(CHUNK)))):
            last = time.perf_counter()
            if last - began < seconds * LEFT_OUT:
                continue
            start = start or last
            received += count if last > start else 0
            pieces += 1
            spent = last - began
            if spent > LONGEST_SECONDS or (spent > seconds * (1 + LEFT_OUT) and pieces > ENOUGH):
                break
    print(json.dumps({"bits_per_second": 8 * received / (last - start) if start and last > start else 0.0}))


def send(host: str, port: int, seconds: float, buffer: int) -> None:
    """The sending end."""
    with socket.create_connection((host, port), DEADLINE_SECONDS) as peer:
        if buffer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(PINGS):
            began = time.perf_counter()
            peer.sendall(b"x")
            peer.recv(1)
            times.append(1e3 * (time.perf_counter() - began))
        until = time.perf_counter() + (LONGEST_SECONDS if seconds else 0)  # the receiver ends it before
        while time.perf_counter() < until:
            try:
                peer.sendall(CHUNK[: buffer or None])
            except (BrokenPipeError, ConnectionResetError, TimeoutError):  # the receiver has measured enough
                break
    print(json.dumps({"round_trip_ms": statistics.median(times)}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", seconds]:
            serve(float(seconds))
        case ["send", host, port, seconds, buffer]:
            send(host, int(port), float(seconds), int(buffer))
