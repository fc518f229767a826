"""`syncbed prometheus-snapshot`: keep a run's raw series, which live in the memory of the cluster's Prometheus.

    runs/<id>/prometheus/series.om.gz     OpenMetrics text: a line `name{labels} value time` for each sample

That is all Prometheus has of the run's time, its own figures and what its rules record included. It is read through the
query API, which is always there; the admin API, which could copy blocks, is off and stays off.
docs/reference/metrics.md says how a Prometheus reads the file again. Source: OpenMetrics 1.0,
prometheus.io/docs/prometheus/latest/storage (backfilling).
"""

import gzip
import json
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from monitor import capabilities
from monitor.engine import containers, naming, sdk
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.metrics import prometheus
from monitor.metrics.promql import has_plain_names, selector
from monitor.results import store
from monitor.results.result import RUNNING
from node.training_metrics import KEEP_SECONDS
from trainer import events
from trainer.files import whole_file
from trainer.received import received_lines

SETTINGS = {
    "RUNS_DIR": "folder of results; default: runs",
    "PROJECT": "name of the cluster that the run was on; default: syncbed",
}
FILE = "prometheus/series.om.gz"
BEFORE_SECONDS, AFTER_SECONDS = 1.0, KEEP_SECONDS + 1.0  # the scrape before the first event; a dead rank's last figures


def command(settings: dict[str, str], args) -> int:
    """CLI `prometheus-snapshot`. Raises UserError in one line."""
    refuse_unknown(settings, SETTINGS)
    runs = Path(settings.get("RUNS_DIR", "runs"))
    result = store.load(args.run, runs)
    run = result.id
    runtime = capabilities.of(result.runtime)
    if not runtime.has_prometheus:
        raise UserError(
            f"RUN={run}: it ran as {runtime.nodes}, which no Prometheus watches; metrics.csv has each second of it"
        )
    if result.status == RUNNING:
        raise UserError(f"RUN={run}: it is running; its series are whole once it has ended")
    home = store.folder_of(args.run, runs)
    start, end = span(home)
    name = naming.project(settings)
    url, path = find(run, name), home / FILE
    try:
        _check_known(url, run, name, start, end)
        counts = write(path, url, start - BEFORE_SECONDS, end + AFTER_SECONDS)
    except prometheus.NotAnswering as error:
        raise RunFailed(
            f"RUN={run}: Prometheus at {url} does not answer ({error}); `make logs NODE=prometheus{naming.words(name)}`"
        ) from None
    except OSError as error:
        raise RunFailed(f"RUN={run}: {path} cannot be written ({error.strerror or error})") from None
    if (seconds := counts["first"] - start) > BEFORE_SECONDS:
        print(f"warning: Prometheus has nothing of the first {seconds:.0f} s of the run", file=sys.stderr)
    size = path.stat().st_size
    if args.json:
        print(json.dumps({"path": str(path), "bytes": size} | counts))
    else:
        print(f"{path}: {counts['series']} series, {counts['samples']} samples, {size / 1e6:.1f} MB")
    return 0


def _check_known(url: str, run: str, cluster: str, start: float, end: float) -> None:
    """Raises UserError when Prometheus has nothing of the run, and NotAnswering."""
    query = f"{selector({'__name__': 'syncbed_training_run_info', 'run': run})}[1d]"
    if not prometheus.query(url, query, end):
        began = datetime.fromtimestamp(start, timezone.utc).isoformat(" ", "seconds")
        raise UserError(
            f"RUN={run}: Prometheus of cluster {cluster} has nothing of it, from {began}: it keeps 12 hours, less if "
            "that is too much, none from before it was started; PROJECT= names another cluster"
        )


def span(folder: Path) -> tuple[float, float]:
    """Unix seconds of a run's first and last event. Raises UserError."""
    try:
        lines = received_lines(folder / "events.jsonl")
        times = [event.time for line in lines if (event := events.parse(line))]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"RUN={folder.name}: events.jsonl cannot be read ({error})") from None
    if not times:
        raise UserError(f"RUN={folder.name}: nothing ran, so there is nothing to keep")
    return min(times), max(times)


def find(run: str, project: str) -> str:
    """The address of the cluster's Prometheus. Raises UserError when there is none."""
    client = sdk.connect()
    with sdk.guard():
        url = containers.urls(client, project).get("prometheus")
    if url is None:
        raise UserError(f"RUN={run}: no cluster {project} is up, and what its Prometheus held went with it")
    return url


def write(path: Path, url: str, start: float, end: float) -> dict:
    """Write every series of this time, whole or not at all. Raises NotAnswering and OSError.

    Returns how many `series` and `samples` there are, and the Unix seconds of the `first` scrape of a node.
    """
    path.parent.mkdir(exist_ok=True)
    counts, first = {"series": 0, "samples": 0}, end
    with whole_file(path) as packed, gzip.open(packed, "wt", encoding="utf-8", compresslevel=6) as file:
        for labels, samples in read(url, start, end):
            if labels["__name__"] == "up" and labels.get("job") == "node":
                first = min(first, samples[0][0])
            head = selector(labels)
            file.writelines(f"{head} {value} {when:.3f}\n" for when, value in samples)
            counts["series"] += 1
            counts["samples"] += len(samples)
        file.write("# EOF\n")
    return counts | {"first": first}


def read(url: str, start: float, end: float) -> Iterator[tuple[dict[str, str], list]]:
    """Every series that has samples in this time, by name: its labels and its (Unix seconds, value as text) pairs.

    One is asked for at a time, so that no answer is larger than a day of one series. Raises NotAnswering. Without those
    whose names are none of ours: a line of the snapshot could not hold them.
    """
    milliseconds = round(1000 * (end - start))
    for labels in sorted(filter(has_plain_names, prometheus.series(url, start, end)), key=selector):
        for series in prometheus.query(url, f"{selector(labels)}[{milliseconds}ms]", end):
            if series["metric"] == labels:  # one with more labels matches too
                yield labels, series["values"]
