"""`syncbed export`: a run's model as a folder of its own, runs/<id>/export/ (serving/artefact.py says what is in it).

Torch does it, and is never imported here: a process of this environment where torch is installed, else a container of
the node image, which is gone afterwards.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from docker import DockerClient

from monitor import checkout
from monitor.engine import archives, images, naming, sdk
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.results import show, store, text
from monitor.results.machine import own_version
from monitor.results.result import FAILED, RUNNING
from trainer.checkpoint_folder import FOLDER as CHECKPOINTS
from trainer.checkpoint_folder import MODEL, DamagedError, complete_ones, sha256, verify

SETTINGS = {"RUN": "a run's id, or latest, which is the default", "RUNS_DIR": "folder of results; default: runs"}
FOLDER, ABOUT, WEIGHTS = "export", "model.json", "model.safetensors"


def command(settings: dict[str, str], args) -> int:
    """CLI `export`."""
    refuse_unknown(settings, SETTINGS)
    folder = export(args.run, show.runs_folder(settings))
    about = json.loads((folder / ABOUT).read_text())
    if args.json:
        print(json.dumps({"path": str(folder)} | about))
    else:
        accuracy = about["metrics"]["test_accuracy"]
        scored = "not scored" if accuracy is None else f"test accuracy {text.share(accuracy)}"
        print(f"{about['model']} of step {about['step']}, {len(about['classes'])} classes, {scored}: {folder}")
    return 0


def present(run: str, runs: Path) -> Path | None:
    """The run's artefact, where there is a whole one of its last checkpoint."""
    folder = runs / store.load(run, runs).id / FOLDER
    checkpoints = complete_ones(folder.parent / CHECKPOINTS)
    try:
        about = json.loads((folder / ABOUT).read_text())
        step = about["step"]
        if sha256(folder / WEIGHTS) != about["sha256"] or not {"run", "model"} <= about.keys():
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return folder if not checkpoints or step == int(checkpoints[-1].name[5:]) else None


def export(run: str, runs: Path) -> Path:
    """Export the run's last complete checkpoint; returns the folder. Raises UserError in one line."""
    result = store.load(run, runs)
    home = runs / result.id
    checkpoints = complete_ones(home / CHECKPOINTS)
    if not checkpoints:
        why = {RUNNING: " yet; EVERY=n writes one each n steps", FAILED: ", as it failed before"}
        newest = next((f.name for f in store.folders(runs) if complete_ones(f / CHECKPOINTS)), None)
        instead = f"RUN={newest} has one" if newest else "train again (a sweep keeps them with KEEP=1)"
        end = why.get(result.status, "")
        raise UserError(f"RUN={run}: it has no complete checkpoint to export{end}; {instead}")
    try:
        verify(checkpoints[-1], [MODEL])
    except DamagedError as error:
        raise UserError(f"RUN={run}: {error}") from None
    scores: dict[str, float | None] = {"test_accuracy": None, "test_loss": None}
    if result.steps == int(checkpoints[-1].name[5:]):  # an earlier step's model was not scored
        scores = {"test_accuracy": result.test_accuracy, "test_loss": result.test_loss}
    facts = json.dumps({"run": result.id, "metrics": scores, "syncbed": own_version()})
    has_torch = all(importlib.util.find_spec(name) for name in ("torch", "safetensors"))
    try:
        with tempfile.TemporaryDirectory(dir=home, prefix=f".{FOLDER}-") as work:
            folder = Path(work) / FOLDER
            folder.mkdir()
            if has_torch:
                _by_a_process(checkpoints[-1] / MODEL, folder, facts)
            else:
                _by_a_container(checkpoints[-1] / MODEL, folder, facts)
            if (home / FOLDER).exists():
                (home / FOLDER).rename(Path(work) / "old")
            folder.rename(home / FOLDER)
    except OSError as error:
        raise RunFailed(f"{home}: the model cannot be written ({error.strerror or error})") from None
    return home / FOLDER


def _by_a_process(model: Path, folder: Path, facts: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "serving.export", str(model.resolve()), str(folder.resolve())],
        input=facts,
        env=os.environ | {"PYTHONPATH": str(checkout.ROOT)},
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RunFailed(f"the model could not be exported: {sdk.one_line(ended.stderr)}")


def _by_a_container(model: Path, folder: Path, facts: str) -> None:
    """In and out go through Docker's archive calls: no folder of this machine is mounted."""
    with sdk.guard():
        client, image = _engine()
        container = client.containers.create(
            image,
            ["sh", "-c", "python -m serving.export /tmp/work/model.pt /tmp/work/export </tmp/work/facts.json"],
            labels={naming.PROJECT_LABEL: "syncbed"},
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
        )
        try:
            with archives.bundle(_inputs(model, facts)) as bundle:
                container.put_archive("/tmp", bundle)
            container.start()
            if container.wait()["StatusCode"]:
                log = container.logs(stdout=False).decode(errors="replace")
                raise RunFailed(f"the model could not be exported: {sdk.one_line(log)}")
            for name in (WEIGHTS, ABOUT):
                archives.fetch(container, f"/tmp/work/export/{name}", folder / name)
        finally:
            container.remove(force=True, v=True)


def _engine() -> tuple[DockerClient, str]:
    """The engine, and the id of the node image of this code. Raises UserError where one of them is missing."""
    try:
        client = sdk.connect()
        code = f"{naming.CODE_LABEL}={images.code_hash()}"  # not the latest: another checkout may have built that
        built = client.images.list("syncbed-trainer", filters={"label": code})
    except UserError as error:
        raise UserError(f"exporting needs torch ('make torch' installs it) or an engine ({error})") from None
    if not built or built[0].id is None:
        raise UserError("exporting needs torch ('make torch' installs it) or this version's images ('make images')")
    return client, built[0].id


def _inputs(model: Path, facts: str) -> dict[str, Path | bytes | None]:
    """What the container needs, by its name below /tmp."""
    return {"work": None, "work/export": None, "work/facts.json": facts.encode(), "work/model.pt": model}
