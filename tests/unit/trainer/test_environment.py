"""Threads from the cgroup, the interface from the route: settled before torch is imported."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.environment import (
    EnvironmentFault,
    Place,
    cpu_quota,
    has_bf16,
    interface,
    place,
    settle,
    threads,
)

ROOT = Path(__file__).parents[3]


def tree(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu_dot_max": "50000 100000\n"}, 0.5),
        ({"cpu_dot_max": "250000 100000\n"}, 2.5),
        ({"cpu_dot_max": "max 100000\n"}, None),
        ({"cpu__cpu.cfs_quota_us": "150000\n", "cpu__cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu_dot_max": "nonsense"}, None),
        ({}, None),
    ],
)
def test_quota_of_both_cgroup_versions(tmp_path, files, cores):
    assert cpu_quota(tree(tmp_path, **files)) == cores


def test_threads_are_the_rounded_down_quota_and_at_least_one(tmp_path):
    def of(quota, **environ):
        return threads(environ, tree(tmp_path, cpu_dot_max=f"{quota} 100000"))

    assert [of(50_000), of(100_000), of(250_000)] == [1, 1, 2]
    assert of(400_000, LOCAL_WORLD_SIZE="2") == 2
    assert of(400_000, SYNCBED_CPUS="1.7") == 1  # the launcher's word wins
    with pytest.raises(EnvironmentFault, match="SYNCBED_CPUS=many"):
        of(400_000, SYNCBED_CPUS="many")


def test_without_a_quota_the_cores_are_shared_by_the_ranks_here(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.environment.os.sched_getaffinity", lambda _: set(range(8)))
    assert threads({}, tmp_path) == 8
    assert threads({"LOCAL_WORLD_SIZE": "3"}, tmp_path) == 2


def test_place():
    environ = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "trainer-0", "MASTER_PORT": "29500"}
    assert place(environ) == Place(1, 4, "trainer-0", 29500)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"RANK": "4"}, "RANK=4: ranks of WORLD_SIZE=4 are 0..3"),
        ({"WORLD_SIZE": "no"}, "WORLD_SIZE=no: a whole number"),
    ],
)
def test_a_place_that_makes_no_sense(changes, says):
    with pytest.raises(EnvironmentFault, match=says):
        place({"RANK": "1", "WORLD_SIZE": "4"} | changes)


def test_a_rank_that_was_not_started_as_one():
    with pytest.raises(EnvironmentFault, match="RANK is not set"):
        place({})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.5", "localhost"])
def test_loopback_addresses_route_through_lo(address):
    assert interface(address, 29500) == "lo"


def test_settled_variables():
    environ = {}
    settle(2, "eth0", environ)
    assert environ == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": "eth0",
    }


@pytest.mark.parametrize(
    ("text", "has"), [("flags : fpu avx512_bf16 amx", True), ("Features : fp bf16", True), ("flags : fpu avx2", False)]
)
def test_bf16_instructions(tmp_path, text, has):
    (tmp_path / "cpuinfo").write_text(text)
    assert has_bf16(tmp_path / "cpuinfo") is has


def test_torch_is_not_imported_before_the_environment_is_settled():
    program = "import sys, trainer.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_compiler_is_not_imported_by_an_optimizer():
    program = """
import sys, torch
from trainer.torch_start import without_compiler
without_compiler()
torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
assert "torch._inductor" not in sys.modules
assert torch._dynamo.config.disable is False  # anything else is asked of the real one
assert "torch._inductor" in sys.modules or "torch._dynamo.config" in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


FAULTS = """
import ctypes, resource, sys
from trainer.environment import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
libc, size = ctypes.CDLL(None), 64 << 20
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def use():
    place = libc.malloc(size)
    ctypes.memset(place, 1, size)
    libc.free(place)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

use()
counts = [faults()]
for _ in range(5):
    use()
    counts.append(faults())
# The least: a kernel that is short of memory takes pages away between two uses.
print(min(after - before for before, after in zip(counts, counts[1:])) * resource.getpagesize() / size)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_tensors_memory_is_not_given_back_to_the_kernel_and_cleared_again():
    def share_of_new_pages(how: str) -> float:
        command = [sys.executable, "-c", FAULTS, how]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=True)
        return float(done.stdout)

    assert share_of_new_pages("given back") > 0.001  # huge pages are 512 in one
    assert share_of_new_pages("kept") < 0.0001
