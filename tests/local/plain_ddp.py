"""A plain DistributedDataParallel loop with the trainer's model and batches only; rank 0 saves the weights."""

import os
from pathlib import Path

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["OMP_NUM_THREADS"] = "1"

import injected
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer.data.batches import Batches
from trainer.data.prepared import load
from trainer.spec import RunSpec

spec = RunSpec.from_json(os.environ["SYNCBED_SPEC"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(spec.seed)
model = injected.tiny(10).to(memory_format=torch.channels_last)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), spec.lr, spec.momentum, weight_decay=spec.weight_decay, fused=True)
batches = Batches(load(Path(os.environ["SYNCBED_DATA"])), spec.batch, spec.seed, dist.get_rank(), spec.nodes)
for step in range(1, spec.steps + 1):
    images, labels = batches(step)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(ddp(images), labels).backward()
    optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), os.environ["SYNCBED_OUT"])
dist.destroy_process_group()
