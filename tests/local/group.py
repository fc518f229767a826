"""Ranks that are started once and run many cases: `Group(3).run(function, *arguments)` gives each rank's result.

The function must be importable by name; each rank calls it as function(wire, *arguments), with a Wire that nothing was
done with. What it returns is pickled, so tensors are best given back as arrays. After a case that failed the group is
of no more use, as ranks may wait for each other: `run` raises, and the next `run` starts a new one.
"""

import multiprocessing
import os
import traceback
from datetime import timedelta

from ports import free_port

DEADLINE = 30.0


class Group:
    """n ranks over loopback, as processes of one thread each."""

    def __init__(self, n: int):
        self.n = n
        self._ranks = []

    def run(self, function, *arguments) -> list:
        """Call the function on every rank; the results in the order of ranks."""
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        answers = [pipe.recv() if pipe.poll(120) else (False, "no answer within 120 s") for _, pipe in self._ranks]
        wrong = [f"rank {rank}: {answer}" for rank, (good, answer) in enumerate(answers) if not good]
        if wrong:
            self.stop()
            raise AssertionError("\n".join(wrong))
        return [answer for _, answer in answers]

    def _start(self) -> None:
        context, port = multiprocessing.get_context("spawn"), free_port()
        for rank in range(self.n):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, self.n, port), daemon=True)
            process.start()
            self._ranks.append((process, here))

    def stop(self) -> None:
        """End all processes."""
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._ranks = []


def _serve(pipe, rank: int, n: int, port: int) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    import torch
    import torch.distributed as dist

    from trainer.wire.collectives import Wire
    from trainer.wire.party import Party
    from trainer.wire.peers import Peers

    torch.set_num_threads(1)
    patience = timedelta(seconds=DEADLINE)
    store, beats = (dist.TCPStore("127.0.0.1", port, None, rank == 0 and i == 0, patience, False) for i in (0, 1))
    peers = Peers(dist.PrefixStore("beats", beats), rank, n, DEADLINE)
    peers.start()
    Wire(Party(rank, n, dist.PrefixStore("group", store), peers, DEADLINE)).connect()
    case = 0
    while True:
        function, arguments = pipe.recv()
        case += 1  # names in the store, such as those of meetings, are used once: each case has its own
        wire = Wire(Party(rank, n, dist.PrefixStore(f"case {case}", store), peers, DEADLINE))
        try:
            pipe.send((True, function(wire, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
