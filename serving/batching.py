"""Dynamic batching: requests that come at about the same time are computed as one batch.

A batch takes all that is waiting, up to `most` images. It is held back, for `delay_seconds` after
its oldest request came, only while fewer images wait than the last batch had: one client alone
never waits, and many find each other.
The queue is bounded: what finds it full is refused at once, so that answers are late by a known
time at most.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from serving.errors import busy


@dataclass(eq=False, slots=True)
class _Item:
    images: np.ndarray
    answer: asyncio.Future
    arrived: float


class Batcher:
    """One model's queue and its workers.

    All methods are of the event loop's thread; `predict` runs in the pool.

    `predict`: (b, C, H, W) to (b, ...). `capacity`: requests that may wait. `observe(images,
    seconds)` is told of each batch.
    """

    def __init__(
        self,
        predict: Callable[[np.ndarray], np.ndarray],
        pool: Executor,
        *,
        most: int,
        delay_seconds: float,
        capacity: int,
        observe: Callable[[int, float], None],
    ):
        self.most, self.delay_seconds, self.capacity = most, delay_seconds, capacity
        self._predict, self._pool, self._observe = predict, pool, observe
        self._waiting: deque[_Item] = deque()
        self._images = 0  # of all that wait
        self._last = 1  # images of the last batch
        self._news = asyncio.Event()
        self._worker_count = 0
        self._workers: dict[int, asyncio.Task] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def workers(self) -> int:
        return self._worker_count

    async def __call__(self, images: np.ndarray) -> np.ndarray:
        """What `predict` says of these images, at most `most`. Raises Refused (503)."""
        self.refuse_if_full()
        item = _Item(images, asyncio.get_running_loop().create_future(), perf_counter())
        self._waiting.append(item)
        self._images += len(images)
        if len(self._waiting) == 1 or self._images >= min(self._last, self.most):
            self._news.set()
        try:
            return await item.answer
        finally:
            if item.answer.cancelled() and item in self._waiting:  # who asked has gone: there is room for another
                self._waiting.remove(item)
                self._images -= len(item.images)

    def refuse_if_full(self) -> None:
        """Raises Refused (503), which costs less before a body is read and decoded than afterwards."""
        if not self._worker_count:
            raise busy("the model has no workers; PUT /models/<name>?min_worker=1 gives it one")
        if len(self._waiting) >= self.capacity:
            raise busy(f"{self.capacity} requests are waiting already")

    def scale(self, workers: int) -> None:
        """How many batches may be computed at once. With none, what waits is refused."""
        self._worker_count = workers
        for number in range(workers):
            if number not in self._workers or self._workers[number].done():
                self._workers[number] = asyncio.create_task(self._work(number))
        self._news.set()  # who is too many goes
        if not workers:
            for item in self._waiting:
                if not item.answer.done():
                    item.answer.set_exception(busy("the model was taken away"))
            self._waiting.clear()
            self._images = 0

    async def _work(self, number: int) -> None:
        while number < self._worker_count:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
            elif batch := await self._gather():
                await self._compute(batch)

    async def _gather(self) -> list[_Item]:
        """The next batch. Empty where another worker was quicker, or all who asked have gone."""
        target = min(self._last, self.most)
        deadline = self._waiting[0].arrived + self.delay_seconds
        if self._images < target and deadline > perf_counter():
            await self._hold_back(target, deadline - perf_counter())
        batch, count = [], 0
        while self._waiting and count + len(self._waiting[0].images) <= self.most:
            item = self._waiting.popleft()
            self._images -= len(item.images)
            if not item.answer.done():  # else who asked has gone
                batch.append(item)
                count += len(item.images)
        if batch:
            self._last = count
        return batch

    async def _hold_back(self, target: int, seconds: float) -> None:
        """Wait until `target` images are there, or for so many seconds."""
        over = asyncio.Event()

        def end() -> None:
            over.set()
            self._news.set()

        timer = asyncio.get_running_loop().call_later(seconds, end)
        while self._waiting and self._images < target and not over.is_set():
            self._news.clear()
            await self._news.wait()
        timer.cancel()

    async def _compute(self, batch: list[_Item]) -> None:
        began = perf_counter()
        try:
            together = np.concatenate([item.images for item in batch])
            answers = await asyncio.get_running_loop().run_in_executor(self._pool, self._predict, together)
        except Exception as error:  # whatever the model raises is the answer to all who asked
            for item in batch:
                if not item.answer.done():
                    item.answer.set_exception(error)
            return
        self._observe(len(together), perf_counter() - began)
        start = 0
        for item in batch:
            if not item.answer.done():
                item.answer.set_result(answers[start : start + len(item.images)])
            start += len(item.images)
