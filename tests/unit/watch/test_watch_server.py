"""The live page over HTTP: whom it answers, what it says to readers who come, go and come again, what is bounded."""

import asyncio
import base64
import hashlib
import json
import re
import socket
import threading
from contextlib import contextmanager

import pytest
from watched import ZERO, Watched, fault, ready, row, step

from monitor.watch import live as live_module
from monitor.watch import server as server_module
from monitor.watch.live import Live, place_of
from monitor.watch.page import Page
from monitor.watch.server import Server, address, listen


class Served:
    """The page of a watched run, served by another thread."""

    def __init__(self, watched, listener):
        self.watched, self.url = watched, address(listener)
        self.port = listener.getsockname()[1]
        self.live = Live(watched.facts)
        self.server = Server(self.live)
        self._begun = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)), daemon=True)
        self._thread.start()
        assert self._begun.wait(30)

    async def _serve(self, listener):
        self._loop = asyncio.get_running_loop()
        self._begun.set()
        await self.server.serve(listener)

    def call(self, what):
        """Have this called where the page is served."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(what)

    def ended(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(live_module, "TURN_SECONDS", 0.02)


@pytest.fixture
def served(tmp_path, quick):
    with listen() as listener:
        page = Served(Watched(tmp_path), listener)
        yield page
        page.call(page.live.leave)
        assert page.ended()


@contextmanager
def client(served, timeout=30):
    with socket.create_connection(("127.0.0.1", served.port), timeout) as one:
        yield one


def get(path="/", *headers, method="GET") -> bytes:
    """A request's head."""
    lines = [f"{method} {path} HTTP/1.1", *headers]
    if not any(header.lower().startswith("host") for header in headers):
        lines.append("Host: localhost")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def ask(served, request: bytes) -> tuple[int, str]:
    """Status, and all that is said."""
    with client(served) as one:
        one.sendall(request)
        text = b"".join(iter(lambda: one.recv(1 << 16), b"")).decode()
    return int(text.split(" ")[1]), text


class Reader:
    """Somebody who has the page open: the events that came so far."""

    def __init__(self, connection, *headers):
        self._file = connection.makefile("r", encoding="utf-8", newline="\n")
        connection.sendall(get("/events", *headers))
        while self._file.readline().strip():
            pass

    def next(self) -> tuple[str, object, str | None]:
        """Kind, content and id of the next event."""
        fields = {}
        while line := self._file.readline().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields["event"], json.loads(fields["data"]), fields.get("id")

    def until(self, kind: str, holds=lambda content: True):
        """The content and id of the first event of this kind that is as wanted."""
        while True:
            found, content, place = self.next()
            if found == kind and holds(content):
                return content, place


def test_the_page_is_whole_and_allows_nothing_else(served):
    status, text = ask(served, get())
    head, _, page = text.partition("\r\n\r\n")
    assert status == 200
    policy = re.search(r"Content-Security-Policy: (.*)", head)[1]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for kind in ("script", "style"):
        (inside,) = re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"""(?:src|href)=["'](?!data:,)|\bstyle=|\bon\w+=|https?://(?!www\.w3\.org/2000/svg)""", page)
    for line in ("Connection: close", "Cache-Control: no-store", "X-Content-Type-Options: nosniff"):
        assert line in head


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (get("/", "Host: evil.example"), 421, "Host 'evil.example' is not known: ask for localhost or 127.0.0.1"),
        (get("/", "Host: localhost", "Host: evil.example"), 421, "more than one Host"),
        (b"GET / HTTP/1.1\r\n\r\n", 421, "there is no Host"),
        (get("/events", "Host: 127.0.0.1:7007", "Origin: http://evil.example"), 403, "a page of another site"),
        (get("/events", "Sec-Fetch-Site: cross-site"), 403, "a page of another site"),
        (get("/", "Sec-Fetch-Site: same-site"), 403, "a page of another site"),
        (get("/", "Origin: null"), 403, "a page of another site"),
        (get("/", method="POST"), 405, "Allow: GET"),
        (get("/favicon.ico"), 404, "the page is at /"),
        (get("/../../etc/passwd"), 404, "the page is at /"),
        (b"GET /\r\n\r\n", 400, "this is no HTTP/1.1"),
        (b"\x16\x03\x01 x\r\n\r\n", 400, "this is no HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", 400, "this is no HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * (20 << 10), 431, "longer than 16384 bytes"),
    ],
)
def test_what_is_not_answered_is_refused_in_a_line(served, request_, status, says):
    answer, text = ask(served, request_)
    assert answer == status and says in text
    assert text.partition("\r\n\r\n")[2].count("\n") == 1


def test_the_answer_to_a_known_name_is_the_page(served):
    for headers in (["Host: 127.0.0.1:7007"], ["Host: [::1]:7007"], ["Host: LOCALHOST", "Sec-Fetch-Site: none"]):
        assert ask(served, get("/?x=1", *headers))[0] == 200


def test_a_reader_is_told_what_was_and_what_comes(served):
    served.watched.say(ready(0, 3), ready(1, 3), step(0, 1), step(1, 1))
    served.watched.use(row("local-0", 0))
    with client(served) as one:
        reader = Reader(one, "Origin: http://localhost", "Sec-Fetch-Site: same-origin")
        head, _ = reader.until("begin")
        assert head["run"] == served.watched.folder.name and head["nodes"] == ["local-0", "local-1"]
        assert [item[0] for item in reader.until("more", bool)[0]] == ["step", "row"]
        assert reader.until("now")[0]["text"].startswith("step 1 of 3")
        served.watched.say(step(0, 2), step(1, 2), fault("kill:1@2s", "begin", 2, ZERO + 2))
        assert [item[0] for item in reader.until("more")[0]] == ["step", "mark", "line"]


def test_who_comes_again_goes_on_where_he_was(served):
    served.watched.say(ready(0, 3), ready(1, 3), step(0, 1), step(1, 1))
    with client(served) as one:
        _, place = Reader(one).until("more", bool)
    served.watched.say(step(0, 2), step(1, 2))
    with client(served) as one:
        reader = Reader(one, f"Last-Event-ID: {place}")
        kind, _, _ = reader.next()
        assert kind == "now", "not from the beginning"
        assert [item[1] for item in reader.until("more")[0]] == [2]
    with client(served) as one:
        reader = Reader(one, "Last-Event-ID: another-0.1")
        assert reader.next()[0] == "begin"
        assert [item[1] for item in reader.until("more")[0]] == [1, 2]


@pytest.mark.parametrize(
    ("text", "place"),
    [("ab-0.12", ("ab-0", 12)), (None, None), ("", None), ("ab", None), (".5", None), ("a.-1", None), ("a.x", None),
     ("a.²", None), ("a." + "9" * 20, None)],
)  # fmt: skip
def test_a_place_is_what_the_page_said(text, place):
    assert place_of(text) == place


def test_nothing_is_read_while_nobody_looks(served, monkeypatch):
    reads, read = [], served.live._events.read
    monkeypatch.setattr(served.live._events, "read", lambda: reads.append(1) or read())
    for _ in range(3):
        assert ask(served, get())[0] == 200
    assert reads == []
    with client(served) as one:
        Reader(one).until("now")
        wait(lambda: reads)


@pytest.mark.parametrize(
    ("status", "changes", "text"),
    [
        ("finished", {}, "The run has finished."),
        (
            "failed",
            {"error": {"kind": "killed", "message": "rank 1 was killed", "rank": 1, "last_lines": [], "traceback": ""}},
            "The run has failed: rank 1 was killed",
        ),
        ("running", {}, live_module.KILLED),
    ],
)
def test_all_readers_are_told_the_end_and_the_last_steps(served, status, changes, text):
    with client(served) as one, client(served) as two:
        readers = Reader(one), Reader(two)
        for reader in readers:
            reader.until("now")
        served.watched.say(ready(0, 1), ready(1, 1), step(0, 1), step(1, 1))
        served.watched.end(status, **changes)
        served.call(served.live.finish)
        for reader in readers:
            assert reader.until("more")[0][0][0] == "step"
            last, _ = reader.until("end")
            assert last["text"] == text
            assert last["report"] == str(served.watched.folder / "report.html")
        assert one.recv(1) == b"" and two.recv(1) == b""
    assert served.ended()
    with pytest.raises(OSError), client(served, timeout=5):
        pass


def test_the_end_of_a_run_whose_folder_is_gone(tmp_path):
    assert live_module.last_words(tmp_path / "gone")["text"] == live_module.GONE
    (tmp_path / "result.json").write_text("[]")
    assert live_module.last_words(tmp_path)["status"] == "failed"


def test_one_who_does_not_finish_his_request_is_sent_away(served, monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.05)
    assert ask(served, b"GET / HTTP/1.1\r\n")[0] == 408


def test_one_who_takes_nothing_is_left(served, monkeypatch):
    monkeypatch.setattr(server_module, "TAKE_SECONDS", 0.05)
    monkeypatch.setattr(served.live.story, "now", lambda: {"text": "x" * (16 << 20)})  # more than the kernel holds
    with client(served) as one:
        one.sendall(get("/events"))
        wait(lambda: served.live.readers == 1)
        wait(lambda: served.live.readers == 0)


def test_there_are_not_more_clients_than_can_be_answered(served, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_CLIENTS", 1)
    with client(served) as one:
        Reader(one).until("now")
        assert ask(served, get())[0] == 503


def test_one_who_leaves_is_forgotten(served):
    with client(served) as one:
        Reader(one).until("now")
        assert served.live.readers == 1
    wait(lambda: served.live.readers == 0)


def wait(holds):
    """Until it is so; pytest's own time limit ends it when that never comes."""
    pause = threading.Event()
    while not holds():
        pause.wait(0.01)


def test_a_page_that_is_made_twice_is_the_same():
    assert Page().text == Page().text
