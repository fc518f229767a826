"""DistributedDataParallel as its tutorial writes it, without any of our code: what step_time.py compares with.

Started once per rank with torch's usual environment. Rank 0 prints the time at the end of each step, in seconds since
1970, a line each.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = int(sys.argv[1])
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.manual_seed(42)
dist.init_process_group("gloo")
layers, channels = [], 3
for width in (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool"):
    if width == "pool":
        layers.append(nn.MaxPool2d(2))
    else:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)).to(memory_format=torch.channels_last)
ddp = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(ddp.parameters(), 0.1, 0.9, weight_decay=1e-4, fused=True)
images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
labels = torch.randint(10, (BATCH,))
while True:  # until it is killed
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(images), labels)
    loss.backward()
    optimizer.step()
    loss.item()
    if dist.get_rank() == 0:
        print(time.time(), flush=True)
