"""How fast a link is: measured inside a node, over TCP, with nothing of the trainer.

python -m monitor.probe serve SECONDS       print {"port": n}; take one peer, answer its pings, take in what it sends,
                                            then print {"bits_per_second": payload}
python -m monitor.probe send HOST PORT SECONDS      ping, then send for so long; print {"round_trip_ms": median}
"""

import json
import socket
import statistics
import sys
import time

PINGS = 9
LEFT_OUT = 0.4  # share of the time that is not measured: the burst that a pause has saved up, and TCP's slow start
CHUNK = bytes(1 << 16)
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
        start, received, last = None, 0, began
        while first and (got := len(peer.recv(len(CHUNK)))):
            last = time.perf_counter()
            if last - began > seconds * (1 + LEFT_OUT):
                break
            if last - began >= seconds * LEFT_OUT:
                start = start or last
                received += got if last > start else 0
    print(json.dumps({"bits_per_second": 8 * received / (last - start) if start and last > start else 0.0}))


def send(host: str, port: int, seconds: float) -> None:
    """The sending end."""
    with socket.create_connection((host, port), DEADLINE_SECONDS) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(PINGS):
            began = time.perf_counter()
            peer.sendall(b"x")
            peer.recv(1)
            times.append(1e3 * (time.perf_counter() - began))
        until = time.perf_counter() + seconds * (1 + 2 * LEFT_OUT)
        while time.perf_counter() < until:
            try:
                peer.sendall(CHUNK)
            except (BrokenPipeError, ConnectionResetError):  # the receiver has measured enough
                break
    print(json.dumps({"round_trip_ms": statistics.median(times)}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", seconds]:
            serve(float(seconds))
        case ["send", host, port, seconds]:
            send(host, int(port), float(seconds))
