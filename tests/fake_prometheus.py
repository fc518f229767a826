"""A server that answers as Prometheus does, with samples that a test gives it."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

CPU = "syncbed_node_cpu_seconds_total"


class Fake:
    """Holds samples {(metric, node): [(time, value)]} and answers the two kinds of query that window() makes."""

    def __init__(self, samples, last_scrapes=()):
        self.samples, self.ranges = samples, []
        self.last_scrapes = list(last_scrapes)  # one {node: time} per query; the last one is repeated
        self.broken = 0  # this many requests are answered with 503

    def answer(self, form):
        if form["query"][0].startswith("timestamp"):
            now = self.last_scrapes.pop(0) if len(self.last_scrapes) > 1 else self.last_scrapes[0]
            return [{"metric": {"node": node, "job": "node"}, "value": [0, str(when)]} for node, when in now.items()]
        seconds = int(re.search(r"\[(\d+)ms\]$", form["query"][0])[1]) / 1000
        last = float(form["time"][0])
        self.ranges.append((round(last - seconds, 3), last))
        wanted = re.compile(re.search('__name__=~"(.*)"}', form["query"][0])[1])
        result = []
        for (name, node), points in self.samples.items():
            inside = [[t, str(v)] for t, v in points if last - seconds < t <= last]
            if inside and wanted.fullmatch(name):
                result.append({"metric": {"__name__": name, "node": node, "job": "node"}, "values": inside})
        return result


@contextmanager
def serving(fake):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            assert self.path == "/api/v1/query"
            status, body = 200, b""
            if fake.broken:
                fake.broken, status, body = fake.broken - 1, 503, b"Service Unavailable"
            else:
                body = json.dumps(
                    {"status": "success", "data": {"resultType": "x", "result": fake.answer(form)}}
                ).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
