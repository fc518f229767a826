"""The node's launcher, with real processes and without Docker or torch."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from itertools import chain
from pathlib import Path

import psutil
import pytest
from orchestrator import wait_until
from signed import KEY, event_of, next_event

from monitor.runtime.local import _environment
from node import cgroup, facts, launcher, leftovers, lock
from node.ending import ended
from node.leftovers import launcher_command
from trainer import events

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def launch(
    state,
    argv,
    run="run-1",
    rank=2,
    env=None,
    local_rank=0,
    program=None,
    **more,
):
    process = subprocess.Popen(
        [sys.executable, "-c", program] if program else launcher_command(sys.executable, run),
        env=_environment() | {"SYNCBED_STATE": str(state)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    request = {"run": run, "key": KEY, "rank": rank, "local_rank": local_rank, "argv": argv, "env": env or {}}
    process.stdin.write(json.dumps(request | more) + "\n")
    process.stdin.flush()
    return process


def is_up(process):
    """Its node is held, and its rank runs SLEEP."""
    return isinstance(next_event(process.stdout), events.Held) and process.stdout.readline() == "up\n"


def last_event(process):
    return event_of(output(process).splitlines()[-1])


def output(process):
    """All that is printed until the end; stdin stays open, since closing it kills the rank."""
    out = process.stdout.read()
    process.wait(30)
    return out


def wait_gone(process):
    wait_until(lambda: ended(process))


@pytest.mark.parametrize(("code", "returned"), [(0, 0), (2, 1), (1, 1)])
def test_the_exit_code_is_reported(tmp_path, code, returned):
    process = launch(tmp_path, [sys.executable, "-c", f"raise SystemExit({code})"])
    event = last_event(process)
    assert (event.rank, event.code, event.signal, event.out_of_memory) == (2, code, None, False)
    assert process.returncode == returned


@pytest.mark.parametrize("version", ["cgroup-v1", "cgroup-v2"])
def test_out_of_memory_is_told_with_the_limit_and_the_peak_of_the_node(version):
    """The fixture's node has counted two kills, with a limit of 2 GiB."""
    root = Path(__file__).parents[2] / "fixtures" / version / "container"
    usage = cgroup.read(root / "sys", root / "proc")
    killed = launcher.exited(1, -9, 1, usage)
    assert (killed.code, killed.signal, killed.out_of_memory) == (None, "SIGKILL", True)
    assert (killed.memory_limit_bytes, killed.memory_peak_bytes) == (2**31, 1_879_048_192)
    before = launcher.exited(1, -9, 2, usage)  # both were of earlier runs
    assert (before.signal, before.out_of_memory, before.memory_limit_bytes) == ("SIGKILL", False, None)
    larger = launcher.exited(1, 1, 0, replace(usage, memory_peak_bytes=2**32))  # of a run with another limit
    assert (larger.code, larger.out_of_memory, larger.memory_peak_bytes) == (1, True, 2**31)


def test_the_request_reaches_the_rank(tmp_path):
    show = "import os; print(os.environ['SYNCBED_RUN_ID'], os.environ['X'], os.environ['PROMETHEUS_MULTIPROC_DIR'])"
    process = launch(tmp_path, [sys.executable, "-c", show], env={"X": "y"})
    assert output(process).splitlines()[1] == f"run-1 y {tmp_path / 'metrics'}"


def test_the_key_is_nowhere_but_in_the_memory_of_its_launcher(tmp_path):
    show = "import os, sys; print(dict(os.environ), sys.argv, sorted(os.listdir('/proc/self/fd')), flush=True)"
    process = launch(tmp_path, [sys.executable, "-c", f"{show}; import time; time.sleep(600)"])
    assert isinstance(next_event(process.stdout), events.Held)
    seen = process.stdout.readline()
    assert "'SYNCBED_RUN_ID': 'run-1'" in seen and KEY not in seen
    assert seen.endswith("['0', '1', '2', '3']\n")  # the last is that of the list
    launcher = psutil.Process(process.pid)
    assert KEY not in f"{launcher.cmdline()} {launcher.environ()}"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY in path.read_text()]
    process.stdin.close()
    assert process.wait(30) == 1


# A launcher of a user that is not root, as in a container: its descriptors are that user's too.
AS_NOBODY = """
import os, sys
import psutil
from node import ending, hiding, launcher
if os.getuid() == 0:
    for descriptor in (0, 1):
        os.fchown(descriptor, 65534, 65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    hiding.show()  # a change of user has hidden it
{change}
print("begins", flush=True)
sys.argv[1:] = ["run", "of a test"]
sys.exit(launcher.main())
"""
FILES = ("environ", "maps", "mem", "fd/0", "fd/1")
LOOK = f"for file in {' '.join(FILES)}; do (: </proc/$PPID/$file) 2>/dev/null && echo $file; done; ls /proc/$PPID/fd"


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_rank_sees_neither_memory_nor_descriptors_nor_environment_of_its_launcher(is_hidden):
    """Unless the launcher does not hide: this test can fail."""
    change = "" if is_hidden else "launcher.hide = lambda: None"
    with tempfile.TemporaryDirectory() as state:  # not in tmp_path, which is root's
        Path(state).chmod(0o777)
        process = launch(state, ["sh", "-c", LOOK], program=AS_NOBODY.format(change=change))
        _, held, *seen, last = filter(None, output(process).splitlines())
    assert isinstance(event_of(held), events.Held) and isinstance(event_of(last), events.Exited)
    if is_hidden:
        assert seen == []
    else:
        assert {*seen} >= {*FILES, "0", "1", "2"} - {"mem"}  # which Yama may forbid: ptrace(2)


def test_a_launcher_is_hidden_before_it_has_a_key():
    """Then its files are root's, and it is not."""
    command = [sys.executable, "-c", AS_NOBODY.format(change="")]
    with subprocess.Popen(command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begins\n"
        folder = Path(f"/proc/{process.pid}")
        wait_until(lambda: (folder.stat().st_uid != 0, (folder / "environ").stat().st_uid) == (True, 0))
        process.kill()


@pytest.mark.parametrize("word", ["TERM", "KILL"])
def test_words_become_signals(tmp_path, word):
    process = launch(tmp_path, SLEEP)
    assert is_up(process)
    process.stdin.write(word + "\n")
    process.stdin.flush()
    assert last_event(process).signal == f"SIG{word}"


def test_a_rank_is_frozen_and_goes_on_by_words(tmp_path):
    process = launch(tmp_path, SLEEP)
    assert is_up(process)
    child = psutil.Process(process.pid).children()[0]
    for word, stopped in (("STOP", True), ("CONT", False)):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        wait_until(lambda stopped=stopped: (child.status() == psutil.STATUS_STOPPED) == stopped)
    process.stdin.close()
    assert process.wait(30) == 1


def test_before_there_is_a_rank_a_freeze_is_for_nobody(tmp_path):
    process = launch(tmp_path, SLEEP, wait=True)
    assert isinstance(next_event(process.stdout), events.Held)
    process.stdin.write("STOP\nGO\n")
    process.stdin.flush()
    assert process.stdout.readline() == "up\n"
    process.stdin.close()
    assert process.wait(30) == 1


def test_a_frozen_rank_dies_with_its_orchestrator(tmp_path):
    process = launch(tmp_path, SLEEP)
    assert is_up(process)
    child = psutil.Process(process.pid).children()[0]
    os.kill(child.pid, signal.SIGSTOP)
    process.stdin.close()  # what the kernel does when the orchestrator is killed
    assert process.wait(30) == 1
    wait_gone(child)


def test_a_rank_dies_with_its_launcher(tmp_path):
    process = launch(tmp_path, SLEEP)
    assert is_up(process)
    child = psutil.Process(process.pid).children()[0]
    process.kill()
    process.wait(30)
    wait_gone(child)


def test_a_rank_that_is_stopped_before_it_is_tied_to_its_launcher_dies_with_it(tmp_path):
    held_up = """
import json, os, signal, sys
from node import launcher
launcher.die_with_parent = lambda parent: os.kill(os.getpid(), signal.SIGSTOP)
launcher.run(json.loads(sys.stdin.readline()))
"""
    process = launch(tmp_path, SLEEP, program=held_up)
    assert isinstance(next_event(process.stdout), events.Held)
    launcher = psutil.Process(process.pid)
    wait_until(lambda: [c for c in launcher.children() if c.status() == psutil.STATUS_STOPPED])
    (child,) = launcher.children()
    process.stdin.write("KILL\n")
    process.stdin.flush()
    assert process.wait(30) == 1
    wait_gone(child)


def test_a_rank_whose_launcher_was_killed_before_they_were_tied_ends_itself():
    code = "import os; from node.hiding import die_with_parent; die_with_parent(os.getpid()); print('lives')"
    done = subprocess.run([sys.executable, "-c", code], env=_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_second_run_is_told_the_first_ones_id_and_the_lock_goes_with_its_holder(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "STATE", tmp_path)
    first = launch(tmp_path, SLEEP, run="run-1")
    assert is_up(first)
    assert lock.lock_holder() == "run-1"
    second = launch(tmp_path, SLEEP, run="run-2")
    event = last_event(second)
    assert (type(event), event.run, second.returncode) == (events.Busy, "run-1", 3)
    first.kill()
    first.wait(30)
    with (tmp_path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # waits until the kernel has let go
    assert lock.lock_holder() is None
    third = launch(tmp_path, [sys.executable, "-c", ""], run="run-3")
    assert last_event(third).code == 0


def test_who_looks_whether_a_node_is_held_does_not_refuse_a_run(tmp_path, monkeypatch):
    """To look takes the lock for a moment: of a run that starts and a `syncbed status`, the run must not lose."""
    monkeypatch.setattr(lock, "STATE", tmp_path)
    monkeypatch.setattr(lock, "LOOK_SECONDS", 60.0)  # however late the timer is
    with (tmp_path / "lock").open("a+") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (look, fcntl.LOCK_UN)).start()
        with lock.take_lock("run-1", tmp_path / "metrics"):
            assert lock.lock_holder() == "run-1"


def test_a_launcher_that_does_not_listen_is_ended_with_its_rank_and_no_other_run_is(tmp_path):
    """Stopped, it would hold its node for ever."""

    def launched(name):
        process = launch(tmp_path / name, SLEEP, run=f"{tmp_path}/{name}")  # of no other session's tests
        assert is_up(process)
        return process, psutil.Process(process.pid).children()[0]

    (launcher, rank), (other, others_rank) = launched("mine"), launched("other")
    launcher.send_signal(signal.SIGSTOP)
    rank.send_signal(signal.SIGSTOP)
    command = [sys.executable, "-m", "node.launcher", "end", f"{tmp_path}/mine"]
    subprocess.run(command, env=_environment(), check=True)
    assert ended(rank) and ended(psutil.Process(launcher.pid))
    assert launcher.wait(30) == -signal.SIGKILL
    assert others_rank.is_running() and other.poll() is None
    other.kill()
    other.wait(30)


def test_the_other_ranks_of_a_node_run_under_the_lock_of_its_first(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "STATE", tmp_path)
    second = launch(tmp_path, SLEEP, rank=3, local_rank=1)  # started first: it waits
    first = launch(tmp_path, SLEEP)
    assert is_up(first) and is_up(second)
    stranger = launch(tmp_path, SLEEP, run="run-2", local_rank=1)
    assert last_event(stranger).run == "run-1"
    for process in (first, second):
        process.stdin.close()
        assert process.wait(30) == 1
    assert lock.lock_holder() is None


def test_the_figures_of_an_earlier_run_are_gone(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "counter_1.db").write_text("old")
    process = launch(
        tmp_path, [sys.executable, "-c", "import os; print(os.listdir(os.environ['PROMETHEUS_MULTIPROC_DIR']))"]
    )
    assert output(process).splitlines()[1] == "[]"


def put(kind, place, elsewhere):
    """Leave something else of this kind in the place of a node's lock, or of its folder of metrics."""
    match kind:
        case "link":
            place.symlink_to(elsewhere)
        case "pipe":
            os.mkfifo(place)
        case "folder":
            (place / "inner").mkdir(parents=True)
        case "file":
            place.write_text("x")
        case "long":
            place.write_bytes(b"\xff" * 1_000_000)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "long"])
def test_what_a_rank_leaves_in_the_place_of_the_lock_stops_no_run(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(lock, "STATE", tmp_path)
    with (tmp_path / "elsewhere").open("w") as held:  # a file that somebody holds for good
        fcntl.flock(held, fcntl.LOCK_EX)
        put(kind, tmp_path / "lock", tmp_path / "elsewhere")
        assert lock.lock_holder() is None
        with lock.take_lock("run-1"):
            assert lock.lock_holder() == "run-1"
            assert lock.take_lock("run-2") is None
        assert lock.lock_holder() is None
    assert (tmp_path / "elsewhere").read_text() == ""


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "file"])
def test_what_a_rank_leaves_in_the_place_of_the_figures_stops_no_run(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(lock, "STATE", tmp_path / "state")
    (tmp_path / "state").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    metrics = tmp_path / "state" / "metrics"
    put(kind, metrics, tmp_path / "kept")
    with lock.take_lock("run-1", metrics):
        assert (metrics.is_symlink(), list(metrics.iterdir())) == (False, [])
    assert (tmp_path / "kept" / "file").read_text() == "kept"


def test_the_holders_name_is_bounded_and_text(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "STATE", tmp_path)
    with lock.take_lock("run-1"):
        put("long", tmp_path / "lock", None)
        assert lock.lock_holder() == "\ufffd" * lock.ID_BYTES


def test_leftovers_are_this_nodes_ranks_and_no_others(tmp_path, monkeypatch):
    """Another node's ranks, seen from a machine that holds both, must live: a test once killed every run there was."""
    monkeypatch.setattr(lock, "STATE", tmp_path / "mine")

    def rank(**environment):
        process = subprocess.Popen(SLEEP, env=os.environ | environment, stdout=subprocess.PIPE)
        process.stdout.readline()
        return process

    orphan = rank(SYNCBED_RUN_ID="gone", SYNCBED_STATE=str(tmp_path / "mine"))
    others = rank(SYNCBED_RUN_ID="going on", SYNCBED_STATE=str(tmp_path / "other")), rank(SYNCBED_RUN_ID="x"), rank()
    try:
        assert leftovers.end_leftovers() == [orphan.pid]
        assert orphan.wait(30) == -signal.SIGKILL
        assert [process.poll() for process in others] == [None, None, None]
    finally:
        for process in others:
            process.kill()
            process.wait()


def test_what_was_left_has_ended_when_it_is_told(tmp_path, monkeypatch):
    """Until then a rank may hold what the next one needs."""
    monkeypatch.setattr(lock, "STATE", tmp_path)
    kill = os.kill
    monkeypatch.setattr(launcher.os, "kill", lambda *what: threading.Timer(0.3, kill, what).start())
    environment = os.environ | {"SYNCBED_RUN_ID": "gone", "SYNCBED_STATE": str(tmp_path)}
    with subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE) as orphan:
        orphan.stdout.readline()
        found, over = leftovers.end_leftovers(), ended(psutil.Process(orphan.pid))
        kill(orphan.pid, signal.SIGKILL)
    assert (found, over) == ([orphan.pid], True)


def test_check_is_one_json_object_of_facts(tmp_path):
    out = subprocess.run(
        [sys.executable, "-m", "node.launcher", "check"],
        env=_environment() | {"SYNCBED_STATE": str(tmp_path), "RANK": "1", "WORLD_SIZE": "2", "SYNCBED_CODE": "abc"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    facts = json.loads(out)
    assert (facts["rank"], facts["world_size"], facts["code"], facts["run"]) == (1, 2, "abc", None)
    assert set(facts["peers"]) == {"trainer-0", "trainer-1"}
    shm = os.statvfs("/dev/shm")
    assert facts["shm_bytes"] == shm.f_frsize * shm.f_blocks
    assert 20000 <= facts["free_port"] <= 32000


def test_the_free_port_is_not_one_that_is_taken(monkeypatch):
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        port, draw = taken.getsockname()[1], facts.random.randint
        offers = chain([port], iter(lambda: draw(20000, 32000), None))  # of which others may be taken too
        monkeypatch.setattr(facts.random, "randint", lambda low, high: next(offers))
        assert facts.free_port() != port


def test_a_rank_that_is_told_to_wait_starts_on_go(tmp_path):
    argv = [sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"]
    process = launch(tmp_path, argv, wait=True)
    assert isinstance(next_event(process.stdout), events.Held)
    assert psutil.Process(process.pid).children() == []
    assert not (tmp_path / "started").exists()
    process.stdin.write("GO\n")
    process.stdin.flush()
    assert last_event(process).code == 0
    assert (tmp_path / "started").exists()


@pytest.mark.parametrize("last_word", ["", "TERM\n", "KILL\n"])
def test_a_launcher_that_waits_ends_when_it_is_told_or_left_alone(tmp_path, last_word):
    process = launch(tmp_path, SLEEP, wait=True)
    assert isinstance(next_event(process.stdout), events.Held)
    process.stdin.write(last_word)
    process.stdin.flush()
    if not last_word:
        process.stdin.close()
    assert process.wait(30) != 0


IMPATIENT = (
    "import sys; from node import launcher, limits; limits.SECONDS = 0; "
    "sys.argv[1:] = ['run', 'of a test']; sys.exit(launcher.main())"
)


def test_a_rank_is_not_started_where_its_limits_are_not_in_force(tmp_path):
    asked = {"cpus": 0.123, "memory_bytes": None}
    process = launch(tmp_path, SLEEP, program=IMPATIENT, limits=asked)
    held, failed = map(event_of, filter(None, output(process).splitlines()))
    assert isinstance(held, events.Held)
    assert (failed.kind, failed.rank, process.returncode) == ("own", 2, 1)
    assert failed.message.startswith("CPUS=0.123 was asked for, ")


def test_a_node_is_held_until_stdin_ends_and_its_figures_are_left(tmp_path):
    (tmp_path / "metrics").mkdir()

    def hold():
        command = [sys.executable, "-m", "node.launcher", "hold", "clean"]
        env = _environment() | {"SYNCBED_STATE": str(tmp_path)}
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with hold() as first:
        assert first.stdout.readline() == "held\n"
        with hold() as second:
            assert second.stdout.readline() == "busy\n"
            assert second.wait(30) == 3
        refused = last_event(launch(tmp_path, SLEEP))
        assert (type(refused), refused.run) == (events.Busy, "clean")
        assert (tmp_path / "metrics").exists()
        first.stdin.close()
        assert first.wait(30) == 0
    assert last_event(launch(tmp_path, [sys.executable, "-c", ""])).code == 0


def test_a_rank_is_not_started_on_a_link_that_is_not_as_asked_for(tmp_path):
    event = last_event(launch(tmp_path, SLEEP, shaped=True))
    assert (type(event), event.message) == (events.Failed, "its link is not shaped any more")
    assert last_event(launch(tmp_path, [sys.executable, "-c", ""], shaped=False)).code == 0
