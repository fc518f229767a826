"""SYNC_BN=1: batch norm whose statistics are those of the global batch.

torch's own SyncBatchNorm refuses to run on a CPU. Source of the algebra: Ioffe & Szegedy, 2015
(arXiv:1502.03167).

Forward: each rank's sums of x and x^2 per channel, summed over the ranks, give mean and variance.
Backward: the sums of the output's gradient g and of g times the normalised x, summed over the
ranks, are what the gradient at the input lacks without the other ranks. Bytes per step per rank:
two ring all-reduces of two float64 per channel, 2 * 2(n-1)/n * 16C sent, as many received, C being
the channels of all batch-norm layers. Sums are float64 because E[x^2] - E[x]^2 cancels.
"""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.wire.collectives import Wire


def synchronise(model: nn.Module, wire: Wire, weight: float) -> None:
    """Put a synchronised layer in the place of each batch norm, with its parameters, buffers and name.

    `weight`: this rank's samples over the global batch's.
    """
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, SyncBatchNorm(layer, wire, weight))


def step_bytes(model: nn.Module, world_size: int) -> float:
    """Payload bytes per step and rank that the model's synchronised layers send."""
    channels = sum(layer.num_features for layer in model.modules() if isinstance(layer, SyncBatchNorm))
    return 2 * 2 * (world_size - 1) / world_size * 16 * channels


class SyncBatchNorm(_BatchNorm):
    """Takes over `layer`. In evaluation it is an ordinary batch norm."""

    def __init__(self, layer: _BatchNorm, wire: Wire, weight: float):
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        self.weight, self.bias = layer.weight, layer.bias
        for name, buffer in layer.named_buffers():
            setattr(self, name, buffer)
        self._wire, self._share = wire, weight

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")

    def forward(self, input):
        if not self.training:
            return super().forward(input)
        output, mean, variance, count = _Normalise.apply(
            input, self.weight, self.bias, self.eps, self._wire, self._share
        )
        self._track(mean, variance * (count / max(count - 1, 1)))
        return output

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Draw the running statistics towards the batch's, where the layer has them."""
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked += 1
        momentum = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked.item()
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


class _Normalise(torch.autograd.Function):
    """(x, weight, bias) to (normalised x, mean, biased variance, elements per channel), all of the global batch."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, wire, share):
        axes = [0, *range(2, x.dim())]
        count = x.numel() // x.shape[1]  # of this rank, per channel
        total = round(count / share)
        variance, mean = (s.double() for s in torch.var_mean(x.float(), axes, correction=0))
        sums = wire.all_reduce(torch.stack([mean, variance + mean**2]).mul_(count)) / total
        mean = sums[0]
        variance = (sums[1] - mean**2).clamp_(min=0)
        inverse = (variance + eps).rsqrt().float()
        mean, variance = mean.float(), variance.float()
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.wire, ctx.share, ctx.axes, ctx.count = wire, share, axes, count
        output = torch.batch_norm(x, weight, bias, mean, variance, False, 0.0, eps, False)
        ctx.mark_non_differentiable(mean, variance)
        return output, mean, variance, total

    @staticmethod
    def backward(ctx, *gradients):
        gradient = gradients[0]  # of the output; mean and variance have none
        x, weight, mean, inverse = ctx.saved_tensors
        along = [1, -1] + [1] * (x.dim() - 2)
        gradient32 = gradient.float()
        normal = (x.float() - mean.view(along)).mul_(inverse.view(along))
        d_bias, d_weight = gradient32.sum(ctx.axes), (gradient32 * normal).sum(ctx.axes)
        # The loss of this rank counts `share` in the global one, and so do its sums. Ranks' gradients are weighted by
        # `share` afterwards, also those at x: what comes from the others is divided by it, as count = share * total.
        sums = ctx.wire.all_reduce(torch.stack([d_bias, d_weight]).double().mul_(ctx.share)) / ctx.count
        lack_bias, lack_weight = (s.float().view(along) for s in sums)
        scale = inverse if weight is None else inverse * weight
        d_x = normal.mul_(lack_weight).add_(lack_bias).neg_().add_(gradient32).mul_(scale.view(along)).to(x.dtype)
        return d_x, None if weight is None else d_weight, None if weight is None else d_bias, None, None, None
