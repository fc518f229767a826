"""Gradients travel rounded to bf16."""

import torch

from trainer.compress.none import Plain


class Bf16(Plain):
    """Every element as bf16, with 8 bits of precision and float32's range: what is sent is S/2 bytes.

    Sums are rounded to bf16 at every hop, so the relative error grows with the number of ranks;
    nothing is fed back.
    """

    dtype = torch.bfloat16
