"""Files that a node's user has written in a rank's place: they cost the figures of ranks, and not the agent."""

import os
import struct
from pathlib import Path

import pytest
from agent_scrape import get, serving

from node.training_metrics import TrainingCollector

KEYS = [
    "4",
    "null",
    '"abcd"',
    "[1, 2, 3, 4]",
    '["m", "n", [], "t"]',
    '["m", ["n"], {}, "t"]',
    '["m", "n", {"a": 1}, "t"]',
]


def entry(key: bytes, length: int | None = None) -> bytes:
    """A file of prometheus-client with one series; `length`: of its key, as it says."""
    blanks = b" " * (8 - (len(key) + 4) % 8)
    body = struct.pack("i", len(key) if length is None else length) + key + blanks + struct.pack("dd", 1, 1)
    return struct.pack("ii", 8 + len(body), 0) + body


@pytest.mark.parametrize(
    "content",
    [
        *(entry(key.encode()) for key in (*KEYS, "[" * 50_000)),
        *(entry(b'["m", "n", {}, "t"]', length) for length in (-28, -1, 2**31 - 1)),  # -28 is a step of 0 bytes
        struct.pack("ii", 2**31 - 1, 0),
        struct.pack("ii", -1, 0),
    ],
    ids=lambda content: f"{len(content)}-bytes",
)
def test_a_file_that_is_none_of_ours(tmp_path, content):
    (tmp_path / "counter_1.db").write_bytes(content)
    with serving("cgroup-v2/container", tmp_path) as port:
        status, _, text = get(port)
    assert status == 200 and "syncbed_node_info" in text and "syncbed_training" not in text


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_the_agent_waits_for_no_pipe_and_reads_no_device(tmp_path, make):
    make(tmp_path / "counter_1.db")
    assert list(TrainingCollector(tmp_path).samples()) == []
