"""How parameters are divided over servers: contiguous parts of the same size, as nearly as whole rows allow.

A row is an entry of a parameter's first dimension: a filter of a convolution, the weights of one
output. So a piece of a parameter is of the parameter's own kind, a matrix a matrix, and can be
compressed like it.
"""

from itertools import pairwise
from math import prod

import torch

Shapes = dict[str, tuple[int, ...]]
Piece = tuple[str, slice]  # a parameter's name, and which of its rows


def parts(shapes: Shapes, count: int) -> list[dict[str, Piece]]:
    """The pieces of each of `count` parts, by a name of their own.

    Parameters of no dimension are one row.
    """
    total = sum(map(prod, shapes.values()))
    bounds = [round(i * total / count) for i in range(count + 1)]
    divided: list[dict[str, Piece]] = [{} for _ in range(count)]
    offset = 0
    for name, shape in shapes.items():
        rows, row = (shape[0], prod(shape[1:])) if shape else (1, 1)
        # A part's bound that falls into this parameter is moved to the nearest row.
        edges = [min(max(round((bound - offset) / row), 0), rows) for bound in bounds]
        for part, (first, end) in zip(divided, pairwise(edges), strict=True):
            if end > first:
                part[name if end - first == rows else f"{name}[{first}:{end}]"] = (name, slice(first, end))
        offset += rows * row
    return divided


def pieces(tensors: dict[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    """The pieces of each of `count` parts of these tensors, as views, by the pieces' names."""
    divided = parts({name: tuple(tensor.shape) for name, tensor in tensors.items()}, count)
    return [
        {label: tensors[name][rows] if tensors[name].dim() else tensors[name] for label, (name, rows) in part.items()}
        for part in divided
    ]


def weights(model: torch.nn.Module, count: int) -> list[dict[str, torch.Tensor]]:
    """The pieces of each of `count` parts of the parameters that are trained, cut off from their gradients."""
    return pieces({name: p.detach() for name, p in model.named_parameters() if p.requires_grad}, count)


def empty(part: dict[str, torch.Tensor]) -> torch.Tensor:
    """A flat tensor as large as these pieces together."""
    return torch.empty(sum(piece.numel() for piece in part.values()))
