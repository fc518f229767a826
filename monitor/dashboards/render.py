"""Grafana's dashboards as code: each module builds one as plain dictionaries in Grafana's v1 schema.

    python -m monitor.dashboards     # writes grafana/dashboards/*.json, which are committed

The data source and the dashboards have fixed uids, so that links and provisioning hold on every machine.
"""

import json
from pathlib import Path
from urllib.parse import urlencode

from monitor.dashboards import cluster, compare, serving, training
from trainer.files import write_whole
from trainer.names import in_folder

FOLDER = Path(__file__).resolve().parents[2] / "grafana" / "dashboards"
DASHBOARDS = {  # file name: builder
    "cluster": cluster.build,
    "training": training.build,
    "compare": compare.build,
    "serving": serving.build,
}


def render() -> dict[str, str]:
    """File name to JSON text of every dashboard."""
    return {f"{name}.json": json.dumps(build(), indent=2) + "\n" for name, build in DASHBOARDS.items()}


def training_url(grafana: str, run_id: str, since: float) -> str:
    """The Training dashboard of a Grafana, showing one run from a moment (Unix seconds) to now."""
    words = {"var-run": run_id, "from": round(1000 * since), "to": "now"}
    return f"{grafana}/d/{training.UID}?{urlencode(words)}"


def write(folder: Path = FOLDER) -> list[Path]:
    """Write every dashboard into the folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in render().items():
        write_whole(in_folder(folder, name), text)
        files.append(folder / name)
    return files
