"""Many tensors as one: their elements in a single 1-d tensor, which travels in one message, and back again.

    flat = flatten(tensors)             # row by row, whatever the tensors' memory format
    unflatten(flat, tensors)            # copied back into the tensors

Neither records gradients, so parameters may be given as they are.
"""

from collections.abc import Iterable

import torch


@torch.no_grad()
def flatten(tensors: Iterable[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
    """The elements of all tensors as one new 1-d tensor. `dtype`: of the result; default: the first tensor's."""
    tensors = list(tensors)
    flat = torch.empty(sum(t.numel() for t in tensors), dtype=dtype or (tensors[0].dtype if tensors else None))
    for part, tensor in zip(split(flat, tensors), tensors, strict=True):
        part.copy_(tensor)
    return flat


@torch.no_grad()
def unflatten(flat: torch.Tensor, tensors: Iterable[torch.Tensor]) -> None:
    """Copy the parts of `flat` into the tensors. Nothing is copied where a part is the tensor's own memory."""
    tensors = list(tensors)
    for part, tensor in zip(split(flat, tensors), tensors, strict=True):
        if part.data_ptr() != tensor.data_ptr():
            tensor.copy_(part)


def split(flat: torch.Tensor, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Views of the parts of `flat`, each in the shape of its tensor. Raises RuntimeError when sizes do not add up."""
    tensors = list(tensors)
    parts = flat.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
