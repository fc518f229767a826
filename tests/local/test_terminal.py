"""A terminal that is closed in mid-run: the run ends in order, says that it was interrupted, and leaves nothing."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
import threading
from contextlib import suppress

from orchestrator import ROOT, processes_of, wait_until, write_cifar

from monitor.results import store


def own_terminal():
    """In the child: its standard input is the terminal that it hears from."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_all(terminal):
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


def test_a_terminal_that_is_closed_ends_the_run_in_order(tmp_path):
    write_cifar(tmp_path / "cifar")
    terminal, inside = pty.openpty()
    words = ["RUNTIME=local", "NODES=2", "BATCH=8", "STEPS=2000", "DATA_DIR=cifar"]
    process = subprocess.Popen(
        [sys.executable, "-m", "monitor.cli", "run", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"},
        **{"stdin": inside, "stdout": inside, "stderr": inside},
        preexec_fn=own_terminal,
    )
    try:
        os.close(inside)
        threading.Thread(target=read_all, args=(terminal,), daemon=True).start()
        said = tmp_path / "runs/latest/events.jsonl"
        wait_until(lambda: said.exists() and '"event": "step"' in said.read_text(), 120)
        os.close(terminal)
        assert process.wait(150) == 1
    finally:
        process.kill()
        process.wait()
    result = store.load("latest", tmp_path / "runs")
    assert (result.status, result.error.kind) == ("failed", "interrupted")
    assert (tmp_path / "runs/latest/report.html").exists()
    assert processes_of(result.id) == []
