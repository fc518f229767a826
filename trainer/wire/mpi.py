"""MPI in a rank, MPICH's through mpi4py, where TRANSPORT=mpi asks for it.

Nothing of it is loaded otherwise.

MPI carries what the strategy averages. The ranks meet, beat and evaluate through the store and
Gloo, as in every run. Sources: MPI: A Message-Passing Interface Standard 4.1, 6.9.1 and 6.12.5
(all-reduce), 11.2 (start); mpi4py's manual.
"""

import os
import time

from trainer.environment import EnvironmentFault

# Read by MPICH when it is loaded. TCP through libfabric on one interface, also between ranks of one machine, where
# MPICH would take shared memory; and the ring, whose traffic is known: MPICH chooses by size and world otherwise.
SETTINGS = {
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "MPIR_CVAR_IALLREDUCE_INTRA_ALGORITHM": "tsp_ring",
}
POLL_SECONDS = 0.0005  # MPICH moves data only while it is called; between calls other threads get the processor


class Mpi:
    """This rank's part in MPI_COMM_WORLD. Building one blocks until every rank does.

    Raises EnvironmentFault when this process was not started for MPI, or with another rank or size.
    """

    def __init__(self, rank: int, world_size: int):
        if "PMI_FD" not in os.environ:
            raise EnvironmentFault("TRANSPORT=mpi: MPI's process manager is missing; start ranks with `syncbed run`")
        os.environ.update(SETTINGS, FI_TCP_IFACE=os.environ["GLOO_SOCKET_IFNAME"])
        try:
            import mpi4py

            mpi4py.rc.initialize = mpi4py.rc.finalize = False  # by us, where a failure can be told
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise EnvironmentFault(f"TRANSPORT=mpi: mpi4py cannot be loaded ({error})") from None
        self._mpi = MPI
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        self._world = MPI.COMM_WORLD
        if (self._world.rank, self._world.size) != (rank, world_size):
            raise EnvironmentFault(
                f"RANK={rank} of WORLD_SIZE={world_size}: to MPI this is rank {self._world.rank} of {self._world.size}"
            )

    def all_reduce(self, tensor, deadline_seconds: float) -> None:
        """Sum a contiguous CPU tensor over the ranks, in place.

        Raises RuntimeError past the deadline.

        MPI knows no deadlines, so this is the non-blocking all-reduce, asked again and again
        whether it is done. When a peer's connection breaks, MPICH ends this process with a message
        on stderr; nothing can be caught.
        """
        until = time.monotonic() + deadline_seconds
        request = self._world.Iallreduce(self._mpi.IN_PLACE, tensor.numpy())
        while not request.Test():
            if time.monotonic() > until:
                raise RuntimeError("MPI_Iallreduce timed out")
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """After success, when no rank has anything to send any more."""
        self._mpi.Finalize()
