"""`syncbed serve` and `serve-stop`: a run's model behind HTTP, in the cluster where one is up, else on this machine.

The server (serving/) is asked over its management interface; a second `serve` registers with the one that runs.
"""

import json
import re

from monitor.conditions.amounts import whole
from monitor.engine import alone
from monitor.engine.naming import DEFAULT_PROJECT
from monitor.errors import UserError, refuse_unknown
from monitor.ports import check_port
from monitor.results import show
from monitor.runtime.choice import RUNTIMES
from monitor.serve import cluster_host, export, management
from monitor.serve.local_host import SERVING_PORT, LocalHost

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
    **_PLACE,
}
STOP_SETTINGS = {"NAME": "only this model; default: all of them, and the server", **_PLACE}


def command(settings: dict[str, str], args) -> int:
    """CLI `serve`."""
    refuse_unknown(settings, SETTINGS)
    asked = "PORT" in settings
    port = whole("PORT", settings.get("PORT", str(SERVING_PORT)), 1, 65533)
    batching = {
        "batch_size": whole("MAX_BATCH", settings.get("MAX_BATCH", "32"), 1, 256),
        "max_batch_delay": whole("MAX_DELAY_MS", settings.get("MAX_DELAY_MS", "5"), 0, 10_000),
    }
    name = settings.get("NAME")
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", name):
        raise UserError(f"NAME={name}: letters, digits, dots, - and _, at most 80, starting with one of the first two")
    runs = show.runs_folder({word: settings[word] for word in ("RUNS_DIR",) if word in settings})
    told = any(word in settings for word in ("MAX_BATCH", "MAX_DELAY_MS"))
    with _alone():
        folder = export.present(args.run, runs) or export.export(args.run, runs)
        about = json.loads((folder / export.ABOUT).read_text())
        name, url = name or about["model"], f"{about['run']}-{about['sha256'][:8]}"
        place = hosts(settings)[0]
        there = place.port()
        if there is None:
            port = port if asked else place.kept_port() or port
            _check_ports(port)
            place.start(port)
        elif asked and there != port:
            raise UserError(f"PORT={port}: a server runs on {there} already; make serve-stop{place.words} ends it")
        port = there or port
        if url not in management.served(port):
            place.put(folder, url)
        version = management.register(port, url, name, batching, told, place.words)
    pages = (("predictions", f"predictions/{name}"), ("management", "models"), ("metrics", "metrics"))
    where = {what: f"http://127.0.0.1:{port + i}/{page}" for i, (what, page) in enumerate(pages)}
    if args.json:
        print(json.dumps({"name": name, "version": version, "runtime": place.name, "run": about["run"], **where}))
        return 0
    print(f"{name} {version} is served (RUNTIME={place.name}): curl {where['predictions']} -T picture.jpg")
    print(
        f"  management  {where['management']}\n  metrics     {where['metrics']}\n  make serve-stop{place.words} ends it"
    )
    return 0


def stop_command(settings: dict[str, str], args) -> int:
    """CLI `serve-stop`."""
    refuse_unknown(settings, STOP_SETTINGS)
    with _alone():
        places = hosts(settings)
        removed = _stop_one(places, settings["NAME"]) if "NAME" in settings else [w for p in places for w in p.stop()]
    if args.json:
        print(json.dumps({"removed": removed}))
    else:
        print("\n".join(f"removed {what}" for what in removed) or "nothing was served")
    return 0


def _stop_one(places: list, name: str) -> list[str]:
    """Stop serving a model, and the server with its last one. Returns what was removed. Raises UserError."""
    have = []
    for place in places:
        port = place.port()
        names = management.names(port) if port else []
        if name in names:
            management.manage(port, "DELETE", f"/models/{name}")
            return [f"model {name}"] + ([] if management.names(port) else place.stop())
        have += names
    raise UserError(f"NAME={name}: not served; {', '.join(have) or 'nothing'} is")


def _alone():
    """One `serve` or `serve-stop` at a time: two at once would both start the server."""
    return alone.alone("serving", "what is served", needed=False)


def hosts(settings: dict[str, str]) -> list:
    """Where the server is or would be: the first, and where it may be besides, as a cluster came or went since.

    Raises UserError as monitor.runtime.choose does.
    """
    wanted, project = settings.get("RUNTIME"), settings.get("PROJECT", DEFAULT_PROJECT)
    if wanted not in (None, *RUNTIMES):
        raise UserError(f"RUNTIME={wanted}: one of: {', '.join(RUNTIMES)}")
    found = None
    if wanted != "local":
        found = cluster_host.find(project, required=wanted == "docker" or "PROJECT" in settings)
    if found is None:
        return [LocalHost()]
    return [found, LocalHost()] if wanted is None and "PROJECT" not in settings else [found]


def _check_ports(port: int) -> None:
    """Raises UserError unless the three are free."""

    def taken(first: int) -> int | None:
        for one in range(first, first + 3):
            try:
                check_port("PORT", one)
            except UserError:
                return one
        return None

    if (one := taken(port)) is not None:
        near = next((p for p in range(port + 10, min(port + 1000, 65533), 10) if taken(p) is None), None)
        more = f"; PORT={near} would do" if near else ""
        raise UserError(f"PORT={port}: it and the two above it are needed, and {one} is taken{more}")
