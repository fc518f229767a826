"""Gradient matrices travel as products of two thin ones."""

import torch

from trainer.compress.base import Gather, Gradients, Sum, Traffic
from trainer.compress.feedback import ErrorFeedback
from trainer.flat import flatten, split

START = "start/"


class PowerSgd(ErrorFeedback):
    """A gradient of shape (m, ...) is a matrix M of m x k, sent as P (m x r) and Q (k x r), r = min(RANK, m, k).

    Source: Vogels et al., PowerSGD, 2019 (arXiv:1905.13727), algorithms 1 and 2. One power
    iteration, from the Q of the step before (warm start), orthonormalised: P = M Q summed over the
    ranks, orthonormalised; Q = M'P summed; then PQ' stands for the sum of M. Biases and other
    vectors travel as they are, along with the Ps.
    What is sent is 4(m + k)r bytes for a matrix, 4m for a vector; a RANK near min(m, k) sends more
    than it saves.

    Each rank keeps M - P(M'P)', so that what it sent and what it kept make up its own gradient.
    From point to point, a rank makes P of its own M alone. The first Q is drawn from SEED, alike on
    all ranks.
    """

    def __init__(self, spec):
        super().__init__(spec)
        self.start: dict[str, torch.Tensor] = {}  # by name: Q of the last step, orthonormalised
        self._random = torch.Generator().manual_seed(spec.seed)

    def reduce(self, gradients: Gradients, total: Sum, gather: Gather) -> None:
        matrices, vectors = self._corrected(gradients)
        first = [m @ self.start[name] for name, m in matrices.items()] + vectors
        first = split(total(flatten(first)), first)
        left, vectors = [orthonormal(p) for p in first[: len(matrices)]], first[len(matrices) :]
        right = self._keep_the_rest(matrices, left)
        if right:
            right = split(total(flatten(right)), right)
        self._write(gradients, left, right, vectors)
        self._warm_start(matrices, right)

    def traffic(self, gradients: Gradients) -> Traffic:
        left, right, vectors = (sum(t.numel() for t in some) for some in _parts(gradients, self.spec.compress_rank))
        return Traffic(sums=((left + vectors, 4), (right, 4)) if right else ((vectors, 4),))

    def encode(self, gradients: Gradients) -> torch.Tensor:
        matrices, vectors = self._corrected(gradients)
        left = [orthonormal(m @ self.start[name]) for name, m in matrices.items()]
        right = self._keep_the_rest(matrices, left)
        self._warm_start(matrices, right)
        return flatten(left + right + vectors)

    def message(self, gradients: Gradients) -> torch.Tensor:
        return torch.empty(sum(t.numel() for some in _parts(gradients, self.spec.compress_rank) for t in some))

    def decode(self, message: torch.Tensor, gradients: Gradients) -> None:
        left, right, vectors = _parts(gradients, self.spec.compress_rank)
        parts = split(message, left + right + vectors)
        n = len(left)
        self._write(gradients, parts[:n], parts[n : 2 * n], parts[2 * n :])

    def _corrected(self, gradients: Gradients) -> tuple[Gradients, list[torch.Tensor]]:
        """The gradients that are matrices, as such and with what was kept of them; and the vectors."""
        matrices = {name: g.reshape(len(g), -1) for name, g in gradients.items() if g.dim() > 1}
        for name, m in matrices.items():
            if name in self.kept:
                matrices[name] = m + self.kept[name]
            if name not in self.start:
                _, (q,), _ = _parts({name: m}, self.spec.compress_rank)
                self.start[name] = orthonormal(q.normal_(generator=self._random))
        return matrices, [g for g in gradients.values() if g.dim() <= 1]

    def _keep_the_rest(self, matrices: Gradients, left: list[torch.Tensor]) -> list[torch.Tensor]:
        """This rank's Qs for these Ps. What their products lack is kept."""
        right = [m.T @ p for m, p in zip(matrices.values(), left, strict=True)]
        for (name, m), p, q in zip(matrices.items(), left, right, strict=True):
            self.kept[name] = torch.addmm(m, p, q.T, alpha=-1)
        return right

    def _warm_start(self, matrices: Gradients, right: list[torch.Tensor]) -> None:
        self.start |= {name: orthonormal(q) for name, q in zip(matrices, right, strict=True)}

    def _write(self, gradients: Gradients, left, right, vectors) -> None:
        products, vectors = zip(left, right, strict=True), iter(vectors)
        for gradient in gradients.values():
            if gradient.dim() > 1:
                p, q = next(products)
                gradient.copy_((p @ q.T).view(gradient.shape))
            else:
                gradient.copy_(next(vectors))

    def state_dict(self) -> dict[str, torch.Tensor]:
        return super().state_dict() | {START + name: q for name, q in self.start.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        super().load_state_dict(state)
        self.start = {key.removeprefix(START): t.clone() for key, t in state.items() if key.startswith(START)}


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns whose span holds the given ones' (m x r, r <= m); directions that are missing are made up."""
    return torch.linalg.qr(columns).Q


def _parts(gradients: Gradients, rank: int) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Empty tensors in the shapes of the Ps, the Qs and the vectors."""
    sides = [(len(g), g[0].numel()) for g in gradients.values() if g.dim() > 1]
    left = [torch.empty(m, min(rank, m, k)) for m, k in sides]
    right = [torch.empty(k, min(rank, m, k)) for m, k in sides]
    return left, right, [torch.empty(g.shape) for g in gradients.values() if g.dim() <= 1]
