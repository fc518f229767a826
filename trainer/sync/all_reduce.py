"""All-reduce after backward."""

from trainer.compress.base import compressor
from trainer.sync.base import Sync
from trainer.sync.buckets import buckets


class AllReduce(Sync):
    """Once backward is done, the gradients are averaged over the ranks, group by group.

    GRANULARITY=tensor: one collective for each parameter tensor; bucket: for each BUCKET_MB of
    them; flat: one for all.
    Source: Gloo's ring all-reduce (Patarasuk & Yuan, 2009). Nothing is hidden behind backward: read
    it beside ddp.
    Bytes per step per rank: 2(n-1)/n * S sent, as many received, whatever the granularity.
    COMPRESS changes what travels, see trainer/compress/: with s bytes in place of S it is 2(n-1)/n
    * s for bf16 and powersgd, (n-1) * s for topk.
    """

    def setup(self, model):
        self.compressor = compressor(self.spec)
        module = super().setup(model)
        sizes = {name: p.nbytes for name, p in self.parameters().items()}
        self.groups = buckets(sizes, self.spec.granularity, self.spec.bucket_mb)
        return module

    def synchronise(self) -> None:
        gradients = self.weighted_gradients()
        for names in self.groups:
            group = {name: gradients[name] for name in names}
            self.compressor.reduce(group, self.wire.all_reduce, self.wire.all_gather)
        self.synchronisations += 1

    def step_bytes(self, gradient_bytes: int) -> tuple[float, float]:
        n, parameters = self.wire.world_size, self.parameters()
        total = self.batch_norm_bytes()
        for names in self.groups:
            total += self.compressor.traffic({name: parameters[name] for name in names}).ring_bytes(n)
        return total, total

    def state(self) -> dict:
        return self.compressor.state_dict()

    def load_state(self, state: dict) -> None:
        self.compressor.load_state_dict(state)
