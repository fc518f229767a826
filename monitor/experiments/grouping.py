"""Groups: the finished runs of one spec on one runtime, which are repeats of each other."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monitor.experiments import sweep
from monitor.experiments.cells import texts
from monitor.results.parts import Spec
from monitor.results.result import FINISHED, Result
from monitor.results.words import differences, flat
from monitor.statistics.estimate import Estimate, mean


@dataclass(frozen=True)
class Group:
    """Finished runs that differ in nothing. `folders`: where each lies. `failed`: how many more there should be."""

    label: str
    results: tuple[Result, ...]
    folders: tuple[Path, ...]
    failed: int = 0

    @property
    def spec(self) -> Spec:
        return self.results[0].spec

    @property
    def nodes(self) -> int:
        return self.spec.nodes

    def each(self, figure: Callable[[Result], float | None]) -> list[float]:
        """A figure of every repeat that has it."""
        return [value for result in self.results if (value := figure(result)) is not None]

    def estimate(self, figure: Callable[[Result], float | None]) -> Estimate | None:
        """The mean of a figure over the repeats; None where no run has it."""
        values = self.each(figure)
        return mean(values) if values else None


def grouped(runs: list[tuple[Result, Path]]) -> list[Group]:
    """Runs by spec and runtime, in the order in which they were given; labelled by what differs among them."""
    repeats: dict[str, list[tuple[Result, Path]]] = {}
    for result, folder in runs:
        key = json.dumps(flat(result), sort_keys=True)
        repeats.setdefault(key, []).append((result, folder))
    firsts = [same[0][0] for same in repeats.values()]
    groups = []
    for first, same in zip(firsts, repeats.values(), strict=True):
        finished = [(result, folder) for result, folder in same if result.status == FINISHED]
        groups.append(
            Group(
                differences(first, firsts),
                tuple(result for result, _ in finished),
                tuple(folder for _, folder in finished),
                failed=len(same) - len(finished),
            )
        )
    return groups


def cell_groups(job: sweep.Sweep) -> list[Group]:
    """The finished runs of each cell, labelled by what tells the cell from the others."""
    groups = []
    failures = Counter(t.cell for t in job.failures())
    for i, text in enumerate(texts(job.cells)):
        results = tuple(job.results(i))
        folders = tuple(job.folder / result.id for result in results)
        groups.append(Group(text, results, folders, failures[i]))
    return groups
