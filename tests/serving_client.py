"""A server of models in this process, and a client that says what came back. For unit and cluster tests."""

import asyncio
import http.client
import io
import json
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from PIL import Image
from ports import free_port


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def ask(port: int, method: str, path: str, body=None, headers=(), timeout: float = 30) -> Answer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def png(pixels: np.ndarray) -> bytes:
    """uint8 (C, H, W) as a PNG file: its pixels stay what they are."""
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


PIXELS = np.random.default_rng(3).integers(0, 256, (3, 32, 32), np.uint8)
IMAGE = png(PIXELS)


def form(content: bytes, field: str = "data", filename: str | None = "kitten.jpg") -> tuple[bytes, dict]:
    """Body and headers of a multipart form with one field, as curl -F sends it."""
    name = f'; filename="{filename}"' if filename else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{field}"{name}\r\n\r\n'
    return head.encode() + content + b"\r\n--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}


def three_free_ports() -> int:
    """The first of three in a row."""
    while True:
        first = free_port()
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + 3):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Running:
    """A server that runs: its ports, and its models."""

    def __init__(self, store, **limits):
        self.store, self._limits = store, {"capacity": 64, "body_bytes": 1 << 20, "body_seconds": 20, **limits}
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        from serving.intake import Intake
        from serving.metrics import Metrics
        from serving.models import Models
        from serving.server import listen, serve

        self.loop, self._stop, metrics = asyncio.get_running_loop(), asyncio.Event(), Metrics()
        sockets = listen("127.0.0.1", [0, 0, 0])
        self.port, self.management, self.metrics = (one.getsockname()[1] for one in sockets)
        self.models = Models(self.store, metrics, self._limits["capacity"])
        intake = Intake(self._limits["body_bytes"], self._limits["body_seconds"], self._limits["capacity"])
        await serve(sockets, self.models, intake, metrics, self._stop, self._ready.set)

    def start(self) -> "Running":
        self.thread.start()
        assert self._ready.wait(30)
        return self

    def stop(self) -> None:
        """Ask it to end, as SIGTERM does."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)

    def manage(self, method: str, path: str) -> Answer:
        return ask(self.management, method, path)

    def predict(self, body: bytes, path: str = "/predictions/cnn", method: str = "PUT", headers=()) -> Answer:
        return ask(self.port, method, path, body, headers)


@contextmanager
def running(store, **limits):
    """A server of the store, ended at the end."""
    server = Running(store, **limits).start()
    try:
        yield server
    finally:
        server.stop()
        server.thread.join(20)
        assert not server.thread.is_alive()


class Held:
    """Puts itself in the place of a model's computing, and holds it until told."""

    def __init__(self, made, name="cnn"):
        batcher = made.models.find(name).batcher
        self.may, self.computing, self._predict = threading.Event(), threading.Event(), batcher._predict
        batcher._predict = self
        self.calls = 0

    def __call__(self, images):
        self.calls += 1
        self.computing.set()
        assert self.may.wait(20)
        return self._predict(images)


def in_flight(made, count):
    """That many requests, each in a thread; their answers end up in the list."""
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(made.predict(IMAGE))) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def wait_until(true):
    while not true():
        threading.Event().wait(0.005)
