"""Groups: the finished runs of one spec on one runtime, which are repeats of each other."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monitor.experiments import sweep
from monitor.results.result import FINISHED
from monitor.results.words import differences, flat
from monitor.statistics.estimate import Estimate, mean


@dataclass(frozen=True)
class Group:
    """Finished runs that differ in nothing. `folders`: where each lies. `failed`: how many more there should be."""

    label: str
    results: tuple[dict, ...]
    folders: tuple[Path, ...]
    failed: int = 0

    @property
    def spec(self) -> dict:
        return self.results[0]["spec"]

    @property
    def nodes(self) -> int:
        return self.spec["nodes"]

    def each(self, figure: Callable[[dict], float | None]) -> list[float]:
        """A figure of every repeat that has it."""
        return [value for result in self.results if (value := figure(result)) is not None]

    def estimate(self, figure: Callable[[dict], float | None]) -> Estimate | None:
        """The mean of a figure over the repeats; None where no run has it."""
        found = self.each(figure)
        return mean(found) if found else None


def grouped(runs: list[tuple[dict, Path]]) -> list[Group]:
    """Runs by spec and runtime, in the order in which they were given; labelled by what differs among them."""
    same: dict[str, list[tuple[dict, Path]]] = {}
    for result, folder in runs:
        key = json.dumps(flat(result), sort_keys=True)
        same.setdefault(key, []).append((result, folder))
    firsts = [own[0][0] for own in same.values()]
    groups = []
    for own in same.values():
        finished = [run for run in own if run[0]["status"] == FINISHED]
        label = differences(own[0][0], firsts)
        groups.append(
            Group(label, *map(tuple, zip(*finished, strict=True)), failed=len(own) - len(finished))
            if finished
            else Group(label, (), (), len(own))
        )
    return groups


def cell_groups(job: sweep.Sweep) -> list[Group]:
    """The finished runs of each cell, labelled by what tells the cell from the others."""
    groups = []
    for i, cell in enumerate(job.cells):
        found = tuple(job.results(i))
        folders = tuple(job.folder / result["id"] for result in found)
        failed = sum(t.cell == i for t in job.failures())
        groups.append(Group(cell.text(job.cells), found, folders, failed))
    return groups
