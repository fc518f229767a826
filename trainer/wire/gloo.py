"""torch.distributed's stores and Gloo's process groups, with types that torch's stubs lack."""

import ipaddress
import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import torch.distributed as dist

from trainer.environment import Place
from trainer.wire.errors import PeerLost
from trainer.wire.peers import START_SECONDS

if TYPE_CHECKING:  # torch.distributed documents these names; its stubs do not export them
    from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
else:
    from torch.distributed import HashStore, PrefixStore, Store, TCPStore

__all__ = ["HashStore", "PrefixStore", "Store", "gloo_group", "open_stores"]


def open_stores(place: Place) -> tuple[Store, Store]:
    """Two connections to the run's store: this rank's, and its heartbeat's. Raises PeerLost.

    torchrun holds the store itself; otherwise rank 0's process does.
    """
    host = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    timeout = timedelta(seconds=START_SECONDS)
    address = place.master_addr, place.master_port, None
    listening = _loopback_listener(place) if host else None  # the store's own from here on
    try:
        store = TCPStore(*address, host, timeout, wait_for_workers=False, master_listen_fd=listening)
        beats = TCPStore(*address, False, timeout, wait_for_workers=False)
    except RuntimeError as error:
        if host:
            raise
        there = f"{place.master_addr}:{place.master_port}"
        raise PeerLost(f"rank 0 does not answer at {there} ({str(error).splitlines()[0]})", 0) from error
    return store, beats


def _loopback_listener(place: Place) -> int | None:
    """A socket that listens on MASTER_ADDR, where that is loopback; else None, and the store makes its own.

    Its own listens on all interfaces, and it asks nobody who they are: who reaches it is a rank.
    Raises RuntimeError, as the store does, when the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(place.master_addr, place.master_port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return None  # the store says what it makes of the name
    if not ipaddress.ip_address(str(address[0]).split("%")[0]).is_loopback:
        return None
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except OSError as error:
            raise RuntimeError(f"{place.master_addr}:{place.master_port}: {error.strerror}") from None
        return listener.detach()


def gloo_group(store: Store, rank: int, world_size: int, timeout_seconds: float) -> dist.ProcessGroup:
    """A Gloo process group that torch.distributed has no name for.

    Blocks until all its ranks build it.

    dist.new_group would name it by how many groups this rank has made, which is not alike on all
    ranks.
    Raises RuntimeError past the timeout.
    """
    group = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_seconds))
    return cast(dist.ProcessGroup, group)  # a Backend in torch's stubs, which do not list its collectives
