"""A run's model, with the weights and the arithmetic that its spec asks for."""

from contextlib import AbstractContextManager, nullcontext

import torch

from trainer.registry import DATA, MODELS, load
from trainer.spec import RunSpec


def build(spec: RunSpec, classes: int) -> torch.nn.Module:
    """The model with weights drawn from the spec's seed, channels last; its size is held against the registry."""
    torch.manual_seed(spec.seed)
    model = load(MODELS[spec.model].place)(classes, spec.shape)
    if classes == DATA[spec.data].classes == 10:
        count, expected = sum(p.numel() for p in model.parameters()), MODELS[spec.model].parameters[spec.shape]
        assert count == expected, f"{spec.model} has {count} parameters, the registry says {expected}"
    return model.to(memory_format=torch.channels_last)


def autocast(spec: RunSpec) -> AbstractContextManager:
    """The context of forward passes: bf16 arithmetic over fp32 weights, or as is."""
    return torch.autocast("cpu", torch.bfloat16) if spec.precision == "bf16" else nullcontext()
