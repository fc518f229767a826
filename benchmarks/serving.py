"""Serving: dynamic batching against a plain server that computes one request at a time, under wrk (Debian's package).

    .venv/bin/python benchmarks/serving.py       # about 3 minutes; SECONDS=5 TURNS=3 REQUESTS=10000 MODEL=vgg11

All serve the same weights on this machine, each alone in its turn, turns interleaved: the plain one is an ordinary
ThreadingHTTPServer around decode, forward pass and JSON, with a lock around the model; "unbatched" is our server with
MAX_BATCH=1. Then the batched server answers
10,000 requests, its resident memory read on the way. Goal: at 64 clients at least twice the plain one's throughput.
"""

import atexit
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import ROOT, publish

CLIENTS = (1, 8, 64)
PORT = {"batched": 18380, "unbatched": 18385, "plain": 18390}
LUA = """
local file = io.open("{image}", "rb")
wrk.method, wrk.body = "PUT", file:read("*a")
file:close()
function done(summary, latency)
  local lost = summary.errors.timeout + summary.errors.read + summary.errors.connect
  io.write(string.format("%d %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), summary.errors.status, lost))
end
"""


def plain(folder: Path) -> None:
    """The plain server, until it is killed."""
    from trainer import environment

    environment.settle(environment.threads(), "lo")
    from serving.artefact import load
    from serving.images import decode

    predictor, lock = load(folder), threading.Lock()
    shape, classes = tuple(predictor.about.shape), predictor.about.classes

    class Handler(BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", -1

        def do_PUT(self):
            pixels = decode(self.rfile.read(int(self.headers["Content-Length"])), shape)
            with lock:
                probabilities = predictor(pixels[None])[0, 1]
            body = json.dumps({classes[i]: float(probabilities[i]) for i in probabilities.argsort()[::-1][:5]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, request, client_address):
            """wrk hangs up at the end of each turn."""

    server = Server(("127.0.0.1", PORT["plain"]), Handler)
    print("serving", flush=True)
    server.serve_forever()


def artefact(folder: Path, model: str) -> dict:
    """An exported model with weights as they are drawn: speed does not depend on them. Returns its spec."""
    from serving.artefact import About, write
    from trainer.models.build import build
    from trainer.spec import RunSpec

    spec = RunSpec(sync="single", nodes=1, model=model, data="synthetic")
    classes = [f"class{i}" for i in range(10)]
    inputs = {"data": "synthetic", "shape": list(spec.shape), "classes": classes}
    inputs |= {"mean": [0.5] * spec.shape[0], "std": [0.25] * spec.shape[0]}
    folder.mkdir(parents=True)
    write(
        folder,
        build(spec, 10).state_dict(),
        About(model, spec=asdict(spec), metrics={}, run="-", step=0, syncbed="-", **inputs),
    )
    return asdict(spec)


def start(kind: str, store: Path) -> subprocess.Popen:
    """One of the two servers, once it answers."""
    (store / "served.json").unlink(missing_ok=True)  # what the one before served
    ours = ["-m", "serving", "--store", str(store), "--port", str(PORT[kind])]
    command = [sys.executable, *([__file__, "plain", str(store / "model")] if kind == "plain" else ours)]
    server = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.kill)
    if not server.stdout.readline().startswith("serving"):
        sys.exit(f"the {kind} server did not start")
    if kind != "plain":
        import requests

        words = {"url": "model", "initial_workers": 1, "batch_size": 32 if kind == "batched" else 1}
        requests.post(f"http://127.0.0.1:{PORT[kind] + 1}/models", params=words, timeout=60).raise_for_status()
    return server


def wrk(kind: str, clients: int, seconds: float, script: Path) -> dict:
    """What wrk measured: answers per second, milliseconds, and answers that were none."""
    url = f"http://127.0.0.1:{PORT[kind]}/predictions/model"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}", "--timeout", "30", "-s", str(script), url]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    count, micros, p50, p99, refused, lost = map(int, re.search(r"^(\d+ ){5}\d+$", process.stdout, re.M)[0].split())
    return {"per_second": count / micros * 1e6, "p50_ms": p50 / 1000, "p99_ms": p99 / 1000, "failed": refused + lost}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that no server is left
    words = dict(word.split("=") for word in sys.argv[1:])
    requests = int(words.get("REQUESTS", 10_000))
    seconds, turns, model = int(words.get("SECONDS", 5)), int(words.get("TURNS", 3)), words.get("MODEL", "vgg11")
    if not shutil.which("wrk"):
        sys.exit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as work:
        store, image, script = Path(work) / "store", Path(work) / "image.png", Path(work) / "put.lua"
        spec = artefact(store / "model", model)
        import numpy as np
        from PIL import Image

        Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)).save(image)
        script.write_text(LUA.replace("{image}", str(image)))
        measurements: dict[str, dict[int, list[dict]]] = {kind: {clients: [] for clients in CLIENTS} for kind in PORT}
        for turn in range(turns):
            for kind in sorted(PORT, reverse=turn % 2 == 0):
                server = start(kind, store)
                wrk(kind, 8, 1, script)  # warm
                for clients in CLIENTS:
                    measurements[kind][clients].append(wrk(kind, clients, seconds, script))
                server.terminate()
                server.wait()
        server = start("batched", store)
        memory, process, answered = [], psutil.Process(server.pid), 0
        while answered < requests:
            one = wrk("batched", 64, 2, script)
            answered += round(one["per_second"] * 2)
            memory.append(round(process.memory_info().rss / 2**20, 1))
        server.terminate()
        drained = server.wait()
    middle = {
        kind: {
            f"{clients} clients": {key: round(statistics.median(t[key] for t in ts), 2) for key in ts[0]}
            for clients, ts in of.items()
        }
        for kind, of in measurements.items()
    }
    ratios = {
        other: [
            round(mine["per_second"] / theirs["per_second"], 2)
            for mine, theirs in zip(measurements["batched"][64], measurements[other][64], strict=True)
        ]
        for other in ("plain", "unbatched")
    }
    figures = {
        "medians": middle,
        "throughput at 64 clients, batched over the other, each turn": ratios,
        "goal": 2,
        "resident MiB each 2 s of 64 clients": {"requests": answered, "MiB": memory},
        "exit code after SIGTERM": drained,
    }
    publish("serving", figures, spec | {"turns": turns, "seconds": seconds})


if __name__ == "__main__":
    plain(Path(sys.argv[2])) if sys.argv[1:2] == ["plain"] else main()
