"""What the network interface counts, and what of it belongs to training."""

import socket

import pytest

from trainer.wire.interface import Window, interface_bytes


def test_the_interfaces_counters_are_the_kernels(tmp_path):
    statistics = tmp_path / "eth7" / "statistics"
    statistics.mkdir(parents=True)
    (statistics / "tx_bytes").write_text("12\n")
    (statistics / "rx_bytes").write_text("345\n")
    assert interface_bytes({"GLOO_SOCKET_IFNAME": "eth7"}, tmp_path) == (12, 345)
    assert interface_bytes({"GLOO_SOCKET_IFNAME": "eth8"}, tmp_path) == (0, 0)
    before = interface_bytes({})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(bytes(1000), ("127.0.0.1", 9))
    after = interface_bytes({})
    assert after[0] - before[0] >= 1000


def test_a_window_is_what_came_after_it_was_opened_without_what_was_left_out():
    counters = iter([(100, 10), (130, 12), (131, 12), (900, 500), (950, 501), (960, 502)])
    window = Window(lambda: next(counters))
    assert window.bytes() == (30, 2)
    with window.left_out():  # from 131, 12 to 900, 500
        pass
    assert window.bytes() == (31 + 50, 2 + 1)
    assert window.bytes() == (31 + 60, 2 + 2)


def test_what_is_left_out_is_so_when_it_fails_too():
    counters = iter([(100, 10), (130, 12), (900, 500), (950, 501)])
    window = Window(lambda: next(counters))
    with pytest.raises(OSError), window.left_out():  # from 130, 12 to 900, 500
        raise OSError("disk full")
    assert window.bytes() == (30 + 50, 2 + 1)
