"""`syncbed watch`: serve the live page of the run that is on, until Ctrl-C or the end of the run."""

import asyncio
import json
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from monitor.conditions.amounts import whole
from monitor.console import console
from monitor.errors import UserError, refuse_unknown
from monitor.metrics import prometheus
from monitor.ports import check_port
from monitor.results import store
from monitor.results.machine import process_start
from monitor.results.result import RUNNING, Result
from monitor.results.show import runs_folder
from monitor.runtime import choice
from monitor.runtime.choice import Place
from monitor.watch.facts import Facts, facts_of
from monitor.watch.live import Live
from monitor.watch.server import PORT, Server, address, listen
from trainer.spec import RunSpec

SETTINGS = {
    "RUNS_DIR": "folder of results; default: runs, and where no run is on there, sweeps/*",
    "PORT": f"port on 127.0.0.1; default: {PORT}, or a free one where that is taken",
    "PROJECT": "name of the cluster that the run is on; default: syncbed",
}
LOOK_SECONDS = 1.0  # between two looks at whether the run is over
PAGES_SECONDS = 30.0  # in which the report of a run that has just ended is written


def command(settings: dict[str, str], args) -> int:
    """CLI `watch`. Raises UserError in one line."""
    refuse_unknown(settings, SETTINGS)
    port = whole("PORT", settings["PORT"], 1, 65535) if "PORT" in settings else None
    folder, result = find(args.run, settings)
    if result.status != RUNNING:
        if args.json:
            print(json.dumps({"run": result.id, "url": None}))
        console(stderr=args.json).print(ended(folder, result), highlight=False)
        return 0
    facts = facts_for(folder, result, settings.get("PROJECT"))
    listener = _listener(port)
    url = address(listener)
    if args.json:
        print(json.dumps({"run": result.id, "url": url}), flush=True)
    else:
        console().print(f"run {result.id}: {url} (Ctrl-C ends the page, not the run)", highlight=False)
    if asyncio.run(_serve(listener, facts, folder)):
        _wait_for_pages(result)
        console(stderr=args.json).print(ended(folder, store.load(folder.name, folder.parent)), highlight=False)
    return 0


def find(run: str, settings: dict[str, str]) -> tuple[Path, Result]:
    """The folder and result of a run by id; of `latest`: the newest one that is on, else the newest.

    Raises UserError where there is none.
    """
    runs = runs_folder({name: value for name, value in settings.items() if name == "RUNS_DIR"})
    if run != "latest":
        return store.folder_of(run, runs), store.load(run, runs)
    places = [runs] if "RUNS_DIR" in settings else [runs, *sorted(Path("sweeps").glob("*"))]
    folders = sorted((folder for place in places for folder in store.folders(place)), key=_age, reverse=True)
    for folder in folders:
        with suppress(UserError):
            document = store.read(folder.name, folder.parent)
            if document.get("status") == RUNNING:
                result = store.parse(folder.name, document)
                if result.status == RUNNING:
                    return folder, result
    if not folders:
        raise UserError(f"no run is on, and {runs} has none: `make run SYNC=ddp` in another terminal starts one")
    return folders[0], store.load(folders[0].name, folders[0].parent)


def _age(folder: Path) -> str:
    """Names begin with the time."""
    return folder.name


def ended(folder: Path, result: Result) -> str:
    """That a run has ended, and where its page is."""
    page = folder / "report.html"
    elsewhere = "" if folder.parent == Path("runs") else f" RUNS_DIR={folder.parent}"
    where = f"its page is {page}" if page.exists() else f"`make report RUN={folder.name}{elsewhere}` writes its page"
    return f"run {folder.name} has {result.status}; {where}"


def facts_for(folder: Path, result: Result, project: str | None) -> Facts:
    """What the page begins with. Raises UserError when another run is on that cluster."""
    spec = RunSpec.from_json(json.dumps(result.spec.values()))
    runtime, note = None, ""
    try:
        runtime = choice.choose(Place(result.runtime, project))
    except UserError as error:
        note = f"Figures of nodes are missing: {error}; PROJECT= names another cluster."
    try:
        facts = facts_of(folder, spec, result.data.label, runtime, note)
    except OSError as error:
        raise UserError(f"run {folder.name}: cannot be read ({error.strerror or error})") from None
    if facts.prometheus:
        _refuse_another_run(facts.prometheus, folder.name)
    elif runtime and runtime.capabilities.has_prometheus:
        return replace(facts, note="No Prometheus runs in the cluster: figures of nodes are missing.")
    return facts


def _refuse_another_run(url: str, run: str) -> None:
    """Raise UserError when this Prometheus sees another run, and not this one."""
    with suppress(prometheus.NotAnswering):
        runs = {series["metric"].get("run") for series in prometheus.query(url, "syncbed_training_run_info")}
        if runs and run not in runs:
            others = ", ".join(map(str, runs))
            raise UserError(f"run {run} is not on this cluster, where {others} is: PROJECT= names its own")


def _listener(port: int | None) -> socket.socket:
    """At this port; None: at the usual one, or any that is free. Raises UserError."""
    try:
        return listen(port or PORT)
    except OSError as error:
        if port is None:
            return listen()
        check_port("PORT", port)
        raise UserError(f"PORT={port}: cannot be had ({error.strerror or error})") from None


async def _serve(listener: socket.socket, facts: Facts, folder: Path) -> bool:
    """Serve the page. Returns whether the run is over; it is not when a signal ended this."""
    live, over = Live(facts), False

    async def look() -> None:
        nonlocal over
        while _goes_on(folder):
            await asyncio.sleep(LOOK_SECONDS)
        over = True
        live.finish()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, live.leave)
    looking = asyncio.create_task(look())
    await Server(live).serve(listener)
    looking.cancel()
    return over


def _goes_on(folder: Path) -> bool:
    try:
        return store.load(folder.name, folder.parent).status == RUNNING
    except UserError:
        return False


def _wait_for_pages(result: Result) -> None:
    """Until the run's orchestrator has ended, which writes the pages last."""
    until = time.monotonic() + PAGES_SECONDS
    while result.orchestrator_pid and process_start(result.orchestrator_pid) == result.orchestrator_start:
        if time.monotonic() > until:
            return
        time.sleep(0.1)
