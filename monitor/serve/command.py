"""`syncbed serve` and `serve-stop`: a run's model behind HTTP, in the cluster where one is up, else on this machine.

The server (serving/) is asked over its management interface; a second `serve` registers with the one that runs.
"""

import json
import re
from contextlib import AbstractContextManager

from monitor.conditions.amounts import whole
from monitor.engine import alone
from monitor.errors import UserError, refuse_unknown
from monitor.ports import check_port
from monitor.results import show
from monitor.runtime.choice import Place
from monitor.serve import cluster_host, export, management
from monitor.serve.cluster_host import ClusterHost
from monitor.serve.local_host import SERVING_PORT, LocalHost
from monitor.serve.management import Batching
from trainer.received import load_json

_PLACE = {
    "RUNTIME": "docker or local; default: the cluster where one is up",
    "PROJECT": "name of the cluster; default: syncbed",
}
SETTINGS = {
    "RUN": "a run's id, or latest, which is the default",
    "NAME": "what the model is called; default: the model's own name. A name that is served gets another version",
    "PORT": "of predictions, on 127.0.0.1; default: that of the server there is, else 8080. Management has the next, "
    "metrics the one after",
    "MAX_BATCH": "images that are computed together at most; default: 32",
    "MAX_DELAY_MS": "how long a request may be held back for others to join it; default: 5",
    "RUNS_DIR": "folder of results; default: runs",
} | _PLACE
STOP_SETTINGS = {"NAME": "only this model; default: all of them, and the server"} | _PLACE
Host = LocalHost | ClusterHost


def command(settings: dict[str, str], args) -> int:
    """CLI `serve`."""
    refuse_unknown(settings, SETTINGS)
    wanted_port = whole("PORT", settings["PORT"], 1, 65533) if "PORT" in settings else None
    batching = Batching(
        batch_size=whole("MAX_BATCH", settings.get("MAX_BATCH", "32"), 1, 256),
        max_batch_delay=whole("MAX_DELAY_MS", settings.get("MAX_DELAY_MS", "5"), 0, 10_000),
    )
    must_match = "MAX_BATCH" in settings or "MAX_DELAY_MS" in settings
    name = settings.get("NAME")
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name):
        raise UserError(f"NAME={name}: letters, digits, dots, - and _, at most 80, starting with one of the first two")
    runs = show.runs_folder({word: settings[word] for word in ("RUNS_DIR",) if word in settings})
    with _alone():
        folder = export.present(args.run, runs) or export.export(args.run, runs)
        about = load_json(folder / export.ABOUT, export.MOST_ABOUT)
        name, url = name or about["model"], f"{about['run']}-{about['sha256'][:8]}"
        place = hosts(settings)[0]
        port = _running(place, wanted_port)
        if url not in management.served(port):
            place.put(folder, url)
        version = management.register(port, url, name, batching, must_match, place.words)
    addresses = {
        "predictions": f"http://127.0.0.1:{port}/predictions/{name}",
        "management": f"http://127.0.0.1:{port + 1}/models",
        "metrics": f"http://127.0.0.1:{port + 2}/metrics",
    }
    if args.json:
        served = {"name": name, "version": version, "runtime": place.name, "run": about["run"]}
        print(json.dumps(served | addresses))
        return 0
    print(f"{name} {version} is served (RUNTIME={place.name}): curl {addresses['predictions']} -T picture.jpg")
    print(f"  management  {addresses['management']}\n  metrics     {addresses['metrics']}")
    print(f"  make serve-stop{place.words} ends it")
    return 0


def _running(place: Host, wanted_port: int | None) -> int:
    """Start the server unless it runs. Returns its port. Raises UserError where that is not the wanted one."""
    port = place.port()
    if port is None:
        port = wanted_port or place.kept_port() or SERVING_PORT
        _check_ports(port)
        place.start(port)
    elif wanted_port not in (None, port):
        raise UserError(f"PORT={wanted_port}: a server runs on {port} already; make serve-stop{place.words} ends it")
    return port


def stop_command(settings: dict[str, str], args) -> int:
    """CLI `serve-stop`."""
    refuse_unknown(settings, STOP_SETTINGS)
    with _alone():
        places = hosts(settings)
        if "NAME" in settings:
            removed = _stop_one(places, settings["NAME"])
        else:
            removed = [line for place in places for line in place.stop()]
    if args.json:
        print(json.dumps({"removed": removed}))
    else:
        print("\n".join(f"removed {what}" for what in removed) or "nothing was served")
    return 0


def _stop_one(places: list[Host], name: str) -> list[str]:
    """Stop serving a model, and the server with its last one. Returns what was removed. Raises UserError."""
    others = []
    for place in places:
        port = place.port()
        if port is None:
            continue
        names = management.names(port)
        if name in names:
            management.manage(port, "DELETE", f"/models/{name}")
            removed = [f"model {name}"]
            return removed if management.names(port) else removed + place.stop()
        others += names
    raise UserError(f"NAME={name}: not served; {', '.join(others) or 'nothing'} is")


def _alone() -> AbstractContextManager[None]:
    """One `serve` or `serve-stop` at a time: two at once would both start the server."""
    return alone.alone("serving", "what is served", needed=False)


def hosts(settings: dict[str, str]) -> list[Host]:
    """Where the server is or would be: the first, and where it may be besides, as a cluster came or went since.

    Raises UserError as monitor.runtime.choice.choose does.
    """
    place = Place.of(settings)
    cluster = cluster_host.find(place.cluster, required=place.must_be_cluster) if place.may_be_cluster else None
    if cluster is None:
        return [LocalHost()]
    return [cluster] if place.must_be_cluster else [cluster, LocalHost()]


def _check_ports(port: int) -> None:
    """Raises UserError unless the three are free."""

    def taken(first: int) -> int | None:
        for number in range(first, first + 3):
            try:
                check_port("PORT", number)
            except UserError:
                return number
        return None

    if (number := taken(port)) is not None:
        near = next((p for p in range(port + 10, min(port + 1000, 65533), 10) if taken(p) is None), None)
        more = f"; PORT={near} would do" if near else ""
        raise UserError(f"PORT={port}: it and the two above it are needed, and {number} is taken{more}")
