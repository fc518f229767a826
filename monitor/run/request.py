"""What a run is asked for: the settings of `make run`, read once, as one object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monitor.conditions import conditions
from monitor.data import catalogue
from monitor.data.command import SETTINGS as DATA_SETTINGS
from monitor.errors import UserError, refuse_unknown
from monitor.run import recovery
from monitor.runtime.choice import Place
from trainer.registry import SYNCS
from trainer.spec import RunSpec

NOT_IN_SPEC = {
    "RUNTIME": "docker or local; default: docker where a cluster is up",
    "PROJECT": "name of the cluster; default: syncbed",
    "DATA_DIR": "a folder that holds the data set in its public layout, in place of a download",
    "DATA_CACHE": DATA_SETTINGS["DATA_CACHE"],
    "RUNS_DIR": "folder of results; default: runs",
    "PAGES": "0: leave out report.html, report.md and the live page; default: 1",
    **conditions.SETTINGS,
    **recovery.SETTINGS,
    "RESUME": "go on from a run's last complete checkpoint: its id, latest, or a path; its settings are taken over",
}
SPEC_SETTINGS = RunSpec.settings_help()
SETTINGS = SPEC_SETTINGS | NOT_IN_SPEC


@dataclass(frozen=True)
class DataRequest:
    """Where the data set comes from. Which one it is stands in the spec."""

    is_named: bool = False
    """Whether DATA= names it: then nothing else takes its place."""

    folder: Path | None = None
    """Holds it in its public layout. None: it is downloaded."""

    cache: Path = catalogue.CACHE
    """Folder of prepared data sets."""


@dataclass(frozen=True)
class Request:
    """One run as it was asked for. Values that depend on the runtime or on a checkpoint are still text."""

    spec: Mapping[str, str] = field(default_factory=dict)
    """Settings of RunSpec, as given. The default of NODES is the runtime's, all others are RunSpec's."""

    conditions: Mapping[str, str] = field(default_factory=dict)
    """Settings of Conditions, as given: they hold a value for each node."""

    place: Place = field(default_factory=Place)
    data: DataRequest = field(default_factory=DataRequest)

    restarts: int = 0
    """How often the run may restart by itself after a lost rank."""

    resume: str | None = None
    """The run or checkpoint that it goes on from."""

    runs: Path = Path("runs")
    """Folder of results."""

    pages: bool = True
    """Whether the run's report is written."""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "Request":
        """From the settings of `make run`. Raises UserError and SpecError; looks at nothing but the settings."""
        refuse_unknown(dict(settings), SETTINGS)
        pages = settings.get("PAGES", "1")
        if pages not in ("0", "1"):
            raise UserError(f"PAGES={pages}: 0 or 1")
        return cls(
            spec=only(settings, SPEC_SETTINGS),
            conditions=only(settings, conditions.SETTINGS),
            place=Place.of(settings),
            data=DataRequest(
                "DATA" in settings,
                catalogue.folder(dict(settings)),
                Path(settings.get("DATA_CACHE", catalogue.CACHE)),
            ),
            restarts=recovery.allowed(settings),
            resume=settings.get("RESUME"),
            runs=Path(settings.get("RUNS_DIR", "runs")),
            pages=pages == "1",
        )

    def new_spec(self, default_nodes: int) -> RunSpec:
        """The spec of a run that begins anew, on `default_nodes` where the settings leave NODES open.

        Raises SpecError.
        """
        return RunSpec.from_settings(with_nodes(self.spec, default_nodes))


def only(settings: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Those of the settings that `names` has."""
    return {name: value for name, value in settings.items() if name in names}


def with_nodes(settings: Mapping[str, str], default_nodes: int) -> dict[str, str]:
    """The settings with NODES: the default where none is given and the strategy takes more than one."""
    strategy = SYNCS.get(settings.get("SYNC", RunSpec.sync), SYNCS[RunSpec.sync])
    if "NODES" in settings or strategy.one_node:
        return dict(settings)
    return {**settings, "NODES": str(default_nodes)}
