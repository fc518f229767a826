"""The process that forks ranks: a fork is like a new process, and no rank outlives its launcher or that process."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from orchestrator import wait_until

from node import warm

ROOT = Path(__file__).parents[3]

# Tells what it is, and does what its environment says.
RANK = """
import json, os, signal, sys, threading
from pathlib import Path
def rank():
    facts = {"env": dict(os.environ), "argv": sys.argv, "umask": os.umask(0o22), "group": os.getpgrp() == os.getpid()}
    facts["files"] = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())[:-1]  # less that of the listing
    facts["stdin"] = os.readlink("/proc/self/fd/0")
    facts["threads"] = len(list(Path("/proc/self/task").iterdir()))
    facts["ignored"] = [s.name for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN]
    facts["hidden"] = os.stat("/proc/self/environ").st_uid != os.geteuid()
    facts["parent"] = os.getppid()
    facts["command"] = Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0")
    os.write(1, json.dumps(facts).encode() + b"\\n")  # at once: its launcher writes there too
    print("to standard error", file=sys.stderr, flush=True)
    if os.environ.get("WAIT"):
        signal.pause()
    if number := os.environ.get("DIE_OF"):
        os.kill(os.getpid(), int(number))
    os._exit(int(os.environ.get("CODE", "0")))
"""
SERVER = (
    RANK
    + """
import trainer.__main__
from node import warm
trainer.__main__.main = rank
warm.warm_up = lambda: None
warm.IDLE_SECONDS = float(os.environ.get("IDLE", "60"))
sys.exit(warm.main())
"""
)
LAUNCHER = """
import json, os, sys
from node import warm
warm.is_there = lambda: True
rank = warm.start(json.loads(sys.argv[1]))
for value in (lambda: rank and rank.pid, lambda: rank and rank.wait()):
    os.write(1, json.dumps(value()).encode() + b"\\n")
"""


def python(script, *words, state, **variables):
    env = os.environ | variables | {"SYNCBED_STATE": str(state), "PYTHONPATH": str(ROOT), "LEAK": "of the server"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", script, *words], env=env, cwd=ROOT, **pipes)


@pytest.fixture
def server(tmp_path):
    process = python(SERVER, state=tmp_path)
    wait_until(lambda: (tmp_path / "warm.sock").exists() or process.poll() is not None)
    assert process.poll() is None, process.stderr.read()
    yield process
    process.kill()
    process.communicate()


def launch(state, **env):
    return python(LAUNCHER, json.dumps(env), state=state)


def lines(process):
    out, err = process.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines()], err


def test_a_fork_is_like_a_new_process(server, tmp_path):
    said, err = lines(launch(tmp_path, RANK="3", CODE="7"))
    (facts,), others = [line for line in said if isinstance(line, dict)], [x for x in said if not isinstance(x, dict)]
    assert facts == {
        "env": {"RANK": "3", "CODE": "7"},
        "argv": ["trainer"],
        "umask": 0o22,
        "group": True,
        "files": [0, 1, 2],
        "stdin": "/dev/null",
        "threads": 1,
        "ignored": facts["ignored"],
        "hidden": False,
        "parent": server.pid,
        "command": ["python", "-m", "trainer"],
    }
    ignored = {number.name for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN}
    assert set(facts["ignored"]) <= ignored | {"SIGPIPE", "SIGXFSZ"}  # as in any process that is started here
    assert others[1] == 7 and err == "to standard error\n"


def test_ranks_of_several_launchers_live_side_by_side_and_end_each_with_its_own_code(server, tmp_path):
    waiting = launch(tmp_path, WAIT="1")
    pid = json.loads(waiting.stdout.readline())
    pid = pid if isinstance(pid, int) else json.loads(waiting.stdout.readline())
    assert [lines(launch(tmp_path, CODE=str(code)))[0][-1] for code in (0, 1, 2)] == [0, 1, 2]
    assert lines(launch(tmp_path, DIE_OF=str(int(signal.SIGABRT))))[0][-1] == -signal.SIGABRT
    os.killpg(pid, signal.SIGTERM)
    assert lines(waiting)[0][-1] == -signal.SIGTERM


def rank_of(launcher):
    said = [json.loads(launcher.stdout.readline()) for _ in range(2)]
    return psutil.Process(next(line for line in said if isinstance(line, int)))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_rank_dies_with_its_launcher(server, tmp_path, frozen):
    launcher = launch(tmp_path, WAIT="1")
    rank = rank_of(launcher)
    if frozen:
        rank.suspend()
    launcher.kill()
    launcher.communicate()
    wait_until(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)
    assert lines(launch(tmp_path))[0][-1] == 0  # and the next one starts


def test_a_rank_dies_with_the_process_that_forked_it(server, tmp_path):
    launcher = launch(tmp_path, WAIT="1")
    rank = rank_of(launcher)
    server.kill()
    assert lines(launcher)[0][-1] == -signal.SIGKILL
    wait_until(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(
    "rubbish",
    [b"", b"\0", b"\0\0\0\5ab", b"\xff\xff\xff\xff" + b"x" * 100, b"\0\0\0\2[]", b"\0\0\0\4null", b'\0\0\0\7{"a":1}'],
)
@pytest.mark.parametrize("descriptors", [0, 1, 2, 3])
def test_rubbish_ends_nothing(server, tmp_path, rubbish, descriptors):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "warm.sock"))
        with suppress(OSError):
            socket.send_fds(connection, [rubbish[:4]], [2] * descriptors) if descriptors else connection.send(
                rubbish[:4]
            )
            connection.send(rubbish[4:])
    open_files = psutil.Process(server.pid).num_fds
    assert lines(launch(tmp_path, CODE="5"))[0][-1] == 5
    wait_until(lambda: open_files() <= 12)  # none that was sent is kept


def test_it_ends_when_nobody_has_asked_for_long_and_its_socket_goes(tmp_path):
    process = python(SERVER, state=tmp_path, IDLE="0.01")
    process.communicate(timeout=60)
    assert process.returncode == 0 and not (tmp_path / "warm.sock").exists()


def test_what_a_rank_imports_is_there_and_nothing_has_read_its_environment(tmp_path):
    """With torch for real: no thread that a fork would lack, and no library that is settled by a rank's environment."""
    script = """
import json, sys
from pathlib import Path
from node import warm
warm.warm_up()
threads = len(list(Path("/proc/self/task").iterdir()))
print(json.dumps([threads, "torch.distributed" in sys.modules, "prometheus_client" in sys.modules]))
"""
    assert lines(python(script, state=tmp_path))[0] == [[1, True, False]]


def test_only_what_docker_has_started_counts(tmp_path):
    def process(pid, parent, state, *command):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (python) {state} {parent} " + " ".join(["7"] * 30))
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in command))

    process(1, 0, "S", "docker-init", "--", "python", "-m", "node.agent")
    process(20, 7, "S", *warm.warm_command("python"))  # of a rank
    process(21, 0, "S", "python", "-m", "node.launcher", "run", "id")
    assert not warm.is_there(tmp_path)
    process(22, 0, "T", *warm.warm_command("python"))  # a rank has stopped it
    assert not warm.is_there(tmp_path)
    process(23, 0, "S", *warm.warm_command("python"))
    assert warm.is_there(tmp_path)


def test_elsewhere_than_in_a_node_there_is_none(tmp_path):
    assert not warm.is_there() and warm.start({}) is None
