"""torch.distributed's stores and Gloo's process groups, with types that torch's stubs lack."""

import os
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
    try:
        store = TCPStore(place.master_addr, place.master_port, None, host, timeout, wait_for_workers=False)
        beats = TCPStore(place.master_addr, place.master_port, None, False, timeout, wait_for_workers=False)
    except RuntimeError as error:
        if host:
            raise
        address = f"{place.master_addr}:{place.master_port}"
        raise PeerLost(f"rank 0 does not answer at {address} ({str(error).splitlines()[0]})", 0) from error
    return store, beats


def gloo_group(store: Store, rank: int, world_size: int, timeout_seconds: float) -> dist.ProcessGroup:
    """A Gloo process group that torch.distributed has no name for.

    Blocks until all its ranks build it.

    dist.new_group would name it by how many groups this rank has made, which is not alike on all
    ranks.
    Raises RuntimeError past the timeout.
    """
    group = dist.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_seconds))
    return cast(dist.ProcessGroup, group)  # a Backend in torch's stubs, which do not list its collectives
