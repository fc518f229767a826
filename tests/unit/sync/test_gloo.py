"""Who can reach the run's store: the kernel's own table of listeners is asked."""

import socket
from pathlib import Path

import psutil
import pytest
from ports import free_port

from trainer.environment import Place
from trainer.wire import gloo

LISTEN = "0A"  # state of a socket in /proc/net/tcp


def listeners(port: int) -> set[str]:
    """The addresses on which something listens on this port, as the kernel writes them."""
    addresses = set()
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == LISTEN and int(number, 16) == port:
                addresses.add(address)
    return addresses


def has_ipv6() -> bool:
    return any(a.address == "::1" for a in psutil.net_if_addrs().get("lo", ()))


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "127.0.0.2", "127.1", "::1"])
def test_the_store_of_a_run_on_this_machine_listens_on_loopback_only(name):
    if name == "::1" and not has_ipv6():
        pytest.skip("no IPv6 here")
    place = Place(0, 1, name, free_port())
    store, beats = gloo.open_stores(place)
    store.set("word", "said")
    assert beats.get("word") == b"said"
    (address,) = listeners(place.master_port)
    assert address.endswith("7F") or address == "0" * 24 + "01000000", "loopback, in the byte order of this machine"


def test_a_node_that_others_must_reach_listens_as_before(monkeypatch):
    """Rank 0 of a cluster: MASTER_ADDR is no loopback address, so nothing is bound here."""
    other = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 29500))
    for answer in ([other], [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 29500, 0, 0))]):
        monkeypatch.setattr(gloo.socket, "getaddrinfo", lambda *_, answer=answer, **__: answer)
        assert gloo._loopback_listener(Place(0, 2, "trainer-0", 29500)) is None


def test_a_port_that_is_taken_is_told():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"127.0.0.1:{port}: Address already in use"):
            gloo.open_stores(Place(0, 1, "127.0.0.1", port))
