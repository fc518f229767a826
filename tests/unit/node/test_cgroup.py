"""The readers against folders that look like other machines; every expected value stands in a fixture file."""

import contextlib
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.cgroup import PROC_ROOT, Interface, Usage, open_files, read, read_network

FIXTURES = Path(__file__).parents[2] / "fixtures"
GIB = 2**30

CONTAINER = {  # the same node in both versions
    "cpu_throttled_seconds": 27.51,
    "cpu_periods": 1250,
    "cpu_throttled_periods": 431,
    "cpu_limit_cores": 0.5,
    "memory_usage_bytes": 1_610_612_736,
    "memory_inactive_file_bytes": 602_931_200,
    "memory_peak_bytes": 1_879_048_192,
    "memory_limit_bytes": 2 * GIB,
    "oom_kills": 2,
    "processes": 3,
    "tasks": 17,
    "open_files": 2 + 3 + 4,
}
EXPECTED = {
    "cgroup-v1/container": Usage(
        cpu_seconds=61.482737611, cpu_user_seconds=52.10, cpu_system_seconds=9.38, **CONTAINER
    ),
    "cgroup-v2/container": Usage(
        cpu_seconds=61.482737, cpu_user_seconds=52.103311, cpu_system_seconds=9.379426, **CONTAINER
    ),
    "cgroup-v1/host": Usage(
        cpu_seconds=12.3456789,
        cpu_user_seconds=10.0,
        cpu_system_seconds=2.34,
        cpu_throttled_seconds=0.0,
        cpu_periods=0,
        cpu_throttled_periods=0,
        cpu_limit_cores=1.5,  # set on the slice above
        memory_usage_bytes=4_096_000,
        memory_inactive_file_bytes=5_000_000,
        memory_peak_bytes=8_192_000,
        memory_limit_bytes=None,  # 9223372036854771712
        oom_kills=None,  # not counted before Linux 4.13
        processes=2,
        tasks=9,
    ),
    "cgroup-v2/host": Usage(
        cpu_seconds=61.482737,
        cpu_user_seconds=52.103311,
        cpu_system_seconds=9.379426,
        cpu_throttled_seconds=27.51,
        cpu_periods=1250,
        cpu_throttled_periods=431,
        cpu_limit_cores=3.0,  # own: max; set on the slice above
        memory_usage_bytes=1_048_576,
        memory_inactive_file_bytes=2_097_152,
        memory_peak_bytes=None,  # not there before Linux 5.19
        memory_limit_bytes=8 * GIB,
        oom_kills=0,
        processes=1,
        tasks=3,
    ),
    "cgroup-v2/no-controllers": Usage(cpu_seconds=5.0, cpu_user_seconds=3.0, cpu_system_seconds=2.0, processes=1),
    "cgroup-hybrid": Usage(
        cpu_seconds=278.088019133,
        cpu_user_seconds=159.18,
        cpu_system_seconds=118.90,
        cpu_throttled_seconds=0.0,
        cpu_periods=0,
        cpu_throttled_periods=0,
        memory_usage_bytes=37_900_288,
        memory_inactive_file_bytes=11_153_408,
        memory_peak_bytes=61_681_664,
        oom_kills=0,
        processes=4,  # pids is not in version 1 here: from the unified tree
    ),
}


def usage(name: str, root: Path = FIXTURES) -> Usage:
    return read(root / name / "sys", root / name / "proc")


@pytest.fixture(autouse=True)
def hundred_ticks(monkeypatch):
    monkeypatch.setattr("node.cgroup._TICKS_PER_SECOND", 100)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_value_of_the_tree(name):
    got, want = usage(name), EXPECTED[name]
    for field in Usage.__dataclass_fields__:
        expected = getattr(want, field)
        value = getattr(got, field)
        assert value == (pytest.approx(expected) if isinstance(expected, float) else expected), field


def test_working_set_is_usage_minus_inactive_file():
    for name in ("cgroup-v1/container", "cgroup-v2/container"):
        assert usage(name).memory_working_set_bytes == 1_610_612_736 - 602_931_200


def test_working_set_is_never_below_zero():
    for name in ("cgroup-v1/host", "cgroup-v2/host"):  # more inactive file cache than usage
        assert usage(name).memory_working_set_bytes == 0


def test_nothing_mounted_is_nothing_known(tmp_path):
    assert read(tmp_path / "sys", tmp_path / "proc") == Usage()
    assert Usage().memory_working_set_bytes is None
    assert read_network(tmp_path / "proc") == {}


@pytest.mark.parametrize("name", ["cgroup-v1/container", "cgroup-v2/container"])
@pytest.mark.parametrize("text", [None, "", "max\n", "garbage here\n", "\xff\xfe"])
def test_any_one_file_may_be_missing_or_broken(tmp_path, name, text):
    files = [f.relative_to(FIXTURES) for f in (FIXTURES / name).rglob("*") if f.is_file() and f.parent.name != "fd"]
    for number, file in enumerate(files):
        if file.name == "cgroup.procs" and text is not None:
            continue  # its lines are counted, whatever they say
        copy = tmp_path / str(number)
        shutil.copytree(FIXTURES / name, copy / name)
        (copy / file).unlink()
        if text is not None:
            (copy / file).write_text(text, encoding="latin-1")
        got, whole = usage(name, copy), EXPECTED[name]
        for field in Usage.__dataclass_fields__:  # what is left is right: a value is either as before or not known
            assert getattr(got, field) is None or getattr(got, field) == pytest.approx(getattr(whole, field)), file
        read_network(copy / name / "proc")


@pytest.mark.parametrize(
    ("error", "state", "is_ours", "files"),
    [
        (PermissionError, "S", False, None),  # another user's: what the others have is not the node's
        (PermissionError, "S", True, 2 + 4),  # it hides, as launchers do
        (PermissionError, "Z", False, 2 + 4),  # it has ended, and the kernel says it is root's
        (ProcessLookupError, "S", False, 2 + 4),
    ],
)
def test_open_files_of_a_process_that_does_not_show_them(tmp_path, monkeypatch, error, state, is_ours, files):
    shutil.copytree(FIXTURES / "cgroup-v2/container", tmp_path / "here")
    user = os.geteuid() if is_ours else os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    (tmp_path / "here/proc/7/stat").write_text(f"7 (a ) name) {state} 1 7 7 0")

    def listdir(path, real=os.listdir):
        if Path(path).parts[-2:] == ("7", "fd"):
            raise error
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert usage("here", tmp_path).open_files == files


@pytest.mark.parametrize(
    ("release", "told"), [("6.2.0-1-amd64", True), ("10.0.1", True), ("6.1.0", False), ("5.4", False)]
)
def test_open_files_are_asked_of_a_kernel_that_counts_them(tmp_path, monkeypatch, release, told):
    shutil.copytree(FIXTURES / "cgroup-v2/container", tmp_path / "here")
    kernel = tmp_path / "here/proc/sys/kernel"
    kernel.mkdir(parents=True)
    (kernel / "osrelease").write_text(release + "\n")
    counts = {"1": 1000, "7": 0, "31": 2000}  # 0: it has none, has ended, or is of another kernel's than told

    def stat(path, real=os.stat, **options):
        if Path(path).name == "fd":
            return SimpleNamespace(st_size=counts[Path(path).parent.name])
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert usage("here", tmp_path).open_files == (1000 + 3 + 2000 if told else 2 + 3 + 4)


def test_open_files_of_this_process_are_those_it_has(tmp_path):
    before = open_files(PROC_ROOT, [str(os.getpid())])
    with contextlib.ExitStack() as held:
        for number in range(50):
            held.enter_context((tmp_path / str(number)).open("w"))
        assert open_files(PROC_ROOT, [str(os.getpid())]) == before + 50


def test_a_path_of_another_namespace_is_not_followed(tmp_path):
    shutil.copytree(FIXTURES / "cgroup-v2/container", tmp_path / "v2")
    outside = tmp_path / "memory.current"
    outside.write_text("1\n")
    (tmp_path / "v2/proc/self/cgroup").write_text("0::/../\n")
    assert usage("v2", tmp_path).memory_usage_bytes == 1_610_612_736


@pytest.mark.parametrize("name", ["cgroup-v1/container", "cgroup-v2/container"])
def test_what_changes_is_read_again(tmp_path, name):
    """Where the files are is looked up once; limits are changed for a run, and processes come and go."""
    shutil.copytree(FIXTURES / name, tmp_path / "here")
    assert usage("here", tmp_path) == usage(name)
    sys = tmp_path / "here/sys"
    if "v1" in name:
        changed = {"cpu/cpu.cfs_quota_us": "75000", "memory/memory.limit_in_bytes": f"{GIB}", "pids/cgroup.procs": "1"}
    else:
        changed = {"cpu.max": "75000 100000", "memory.max": f"{GIB}", "cgroup.procs": "1"}
    for file, text in changed.items():
        (sys / file).write_text(text + "\n")
    got = usage("here", tmp_path)
    assert (got.cpu_limit_cores, got.memory_limit_bytes, got.processes, got.open_files) == (0.75, GIB, 1, 2)


def test_network_counters_by_interface():
    interfaces = read_network(FIXTURES / "cgroup-v1/container/proc")
    assert list(interfaces) == ["lo", "eth0", "eth0:1"]
    assert interfaces["eth0"] == Interface(
        receive_bytes=160_985_621,
        receive_packets=118_320,
        receive_errors=1,
        receive_drops=2,
        transmit_bytes=139_865_475,
        transmit_packets=97_411,
        transmit_errors=4,
        transmit_drops=5,
    )
    assert interfaces["lo"].receive_bytes == interfaces["lo"].transmit_bytes == 3193


@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="no /proc/self/cgroup: not Linux")
def test_this_machine_counts_the_work_done_here():
    before = read()
    if before.cpu_seconds is None:
        pytest.skip("no CPU accounting cgroup is mounted here")
    own = time.process_time()
    while time.process_time() - own < 0.3:
        pass
    time.sleep(0.02)  # what a process computes is counted as it leaves the CPU
    after = read()
    assert after.cpu_seconds - before.cpu_seconds >= 0.29
    assert after.cpu_user_seconds + after.cpu_system_seconds == pytest.approx(after.cpu_seconds, abs=1.0, rel=0.05)
