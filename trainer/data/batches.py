"""Which samples a rank sees in a step, and how they are turned into tensors: on whole batches, never sample by sample.

All randomness is drawn for the whole global batch, from (seed, epoch) or (seed, step), and then cut
into the ranks' shares. So n ranks together see exactly what one rank with the joined batch sees, in
the same order.
"""

import numpy as np
import torch

from trainer.data.prepared import InputError, Prepared, Split

PAD = 4  # pixels of black around an image before it is cropped back to its size
_ORDER, _CROP, _DROPOUT, _PARTS = 1, 2, 3, 4  # separate random streams from one seed


def share(total: int, rank: int, world_size: int) -> slice:
    """The contiguous part of `total` items that is this rank's; parts differ in size by at most one."""
    return slice(rank * total // world_size, (rank + 1) * total // world_size)


def weighted_share(total: int, rank: int, shares: tuple[int, ...]) -> slice:
    """The contiguous part of `total` items that is this rank's, in proportion to its share; the sum must divide."""
    unit = total // sum(shares)
    return slice(unit * sum(shares[:rank]), unit * sum(shares[: rank + 1]))


class Batches:
    """The training batches of one rank.

    `batches(step)`, with steps from 1, gives images float32 (b, C, H, W), channels last, and labels
    int64 (b,), where b = batch / world_size, or this rank's part by `shares`, which then are one
    number for each rank. The last, incomplete batch of an epoch is dropped. Raises InputError when
    the training set is smaller than one batch.
    """

    def __init__(
        self,
        data: Prepared,
        batch: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        shares: tuple[int, ...] | None = None,
    ):
        if len(data.train) < batch:
            raise InputError(f"BATCH={batch}: the training set has {len(data.train)} samples; give a smaller batch")
        self.data, self.batch, self.seed = data, batch, seed
        self.rank, self.world_size = rank, world_size
        self.mine = weighted_share(batch, rank, shares) if shares else share(batch, rank, world_size)
        self.steps_per_epoch = len(data.train) // batch
        self.seen = np.zeros(len(data.train), dtype=bool)  # by this rank
        self._order_epoch, self._order = 0, np.empty(0, dtype=np.int64)  # an epoch, and the order of its samples

    def epoch(self, step: int) -> int:
        """The epoch, from 1, that `step` belongs to."""
        return (step - 1) // self.steps_per_epoch + 1

    def indices(self, step: int) -> np.ndarray:
        """Indices of this rank's samples in the training set, int64 (b,)."""
        epoch = self.epoch(step)
        if self._order_epoch != epoch:
            self._order_epoch = epoch
            self._order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(len(self.data.train))
        start = (step - 1) % self.steps_per_epoch * self.batch
        return self._order[start : start + self.batch][self.mine]

    def __call__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        indices = self.indices(step)
        self.seen[indices] = True
        images, labels = self.data.train.images[indices], self.data.train.labels[indices]
        if self.data.augment:
            rng = np.random.default_rng([self.seed, _CROP, step])
            rows, columns = rng.integers(0, 2 * PAD + 1, (2, self.batch))
            flips = rng.random(self.batch) < 0.5
            images = crop_and_flip(images, rows[self.mine], columns[self.mine], flips[self.mine])
        return normalise(images, self.data.mean, self.data.std), torch.from_numpy(labels)

    def dropout_seed(self, step: int) -> int:
        """What to seed torch's generator with for this step: masks depend on seed, step and rank, on nothing before.

        So a run that is resumed drops what one that never stopped drops. Unlike crops, masks of n
        ranks are not those of one rank with the joined batch.
        """
        return int(np.random.SeedSequence([self.seed, _DROPOUT, step, self.rank]).generate_state(1)[0])


class OwnPart(Batches):
    """The training batches of a rank that only ever sees its own part of the training set.

    The part is a random n-th, drawn from the seed once; an epoch goes through it in the order of
    the whole set's permutation. With one rank these are the batches of `Batches`.
    """

    def indices(self, step: int) -> np.ndarray:
        epoch, total = self.epoch(step), len(self.data.train)
        if self._order_epoch != epoch:
            dealt = np.random.default_rng([self.seed, _PARTS]).permutation(total)
            mine = np.zeros(total, dtype=bool)
            mine[dealt[share(total, self.rank, self.world_size)]] = True
            order = np.random.default_rng([self.seed, _ORDER, epoch]).permutation(total)
            self._order_epoch, self._order = epoch, order[mine[order]]
        size = self.mine.stop - self.mine.start
        start = (step - 1) % self.steps_per_epoch * size
        return self._order[start : start + size]


def crop_and_flip(images: np.ndarray, rows: np.ndarray, columns: np.ndarray, flips: np.ndarray) -> np.ndarray:
    """Pad with PAD black pixels, cut each image out again at its own (row, column), mirror where `flips` says so.

    images (b, C, H, W); rows and columns int (b,), 0..2*PAD; flips bool (b,). One gather for the
    whole batch.
    """
    count, channels, height, width = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    across = np.arange(width)
    across = np.where(flips[:, None], across[::-1], across) + columns[:, None]
    down = np.arange(height) + rows[:, None]
    return padded[
        np.arange(count)[:, None, None, None],
        np.arange(channels)[None, :, None, None],
        down[:, None, :, None],
        across[:, None, None, :],
    ]


def normalise(images: np.ndarray, mean, std) -> torch.Tensor:
    """uint8 (b, C, H, W) in 0..255 to float32 with mean 0 and deviation 1 per channel, channels-last memory format."""
    channels = (1, images.shape[1], 1, 1)
    scale = torch.tensor([1 / (255 * s) for s in std], dtype=torch.float32).view(channels)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32).view(channels)
    pixels = torch.from_numpy(images)
    return pixels.to(torch.float32, memory_format=torch.channels_last).mul_(scale).add_(shift)


def evaluation_batches(data: Prepared, rank: int, world_size: int, batch: int = 256):
    """This rank's share of the test set, as (images, labels); over all ranks each sample comes once. May be empty."""
    mine = share(len(data.test), rank, world_size)
    test = Split(data.test.images[mine], data.test.labels[mine])
    for start in range(0, len(test), batch):
        some = slice(start, start + batch)
        yield normalise(np.array(test.images[some]), data.mean, data.std), torch.from_numpy(test.labels[some])
