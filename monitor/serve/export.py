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
from typing import Any

from docker import DockerClient

from monitor import checkout
from monitor.engine import archives, images, naming, sdk
from monitor.errors import RunFailed, UserError, refuse_unknown
from monitor.results import show, store, text
from monitor.results.machine import own_version
from monitor.results.result import FAILED, RUNNING
from trainer.checkpoint_folder import FOLDER as CHECKPOINTS
from trainer.checkpoint_folder import MODEL, MOST_BYTES, DamagedError, complete_ones, is_folder, sha256, verify
from trainer.names import is_run, is_sha256
from trainer.received import ReceivedError, load_json, refuse_special
from trainer.registry import MODELS

SETTINGS = {"RUN": "a run's id, or latest, which is the default", "RUNS_DIR": "folder of results; default: runs"}
FOLDER, ABOUT, WEIGHTS = "export", "model.json", "model.safetensors"
MOST_ABOUT = 1 << 20  # bytes of model.json
MOST_BESIDES = 8 << 20  # bytes of a model's file besides its parameters at 10 classes: header, buffers, more classes


def command(settings: dict[str, str], args) -> int:
    """CLI `export`."""
    refuse_unknown(settings, SETTINGS)
    folder = export(args.run, show.runs_folder(settings))
    about = load_json(folder / ABOUT)
    if args.json:
        print(json.dumps({"path": str(folder)} | about))
    else:
        accuracy = about["metrics"]["test_accuracy"]
        scored = "not scored" if accuracy is None else f"test accuracy {text.share(accuracy)}"
        print(f"{about['model']} of step {about['step']}, {len(about['classes'])} classes, {scored}: {folder}")
    return 0


def present(run: str, runs: Path) -> Path | None:
    """The run's artefact, where there is a whole one of its last checkpoint."""
    store.load(run, runs)
    home = store.folder_of(run, runs)
    checkpoints = complete_ones(home / CHECKPOINTS)
    try:
        about = read_about(home / FOLDER)
        if sha256(home / FOLDER / WEIGHTS) != about["sha256"]:
            return None
    except ReceivedError as error:
        raise UserError(f"RUN={run}: {FOLDER}/{error}; remove {home / FOLDER}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return home / FOLDER if not checkpoints or about["step"] == int(checkpoints[-1].name[5:]) else None


def read_about(folder: Path) -> dict[str, Any]:
    """What model.json says, once its names are of the form that we write and the weights are of the model's size.

    Raises what reading raises: ReceivedError, OSError, ValueError, KeyError, TypeError and AttributeError.
    """
    if not is_folder(folder):
        raise FileNotFoundError(folder)
    about = load_json(folder / ABOUT, MOST_ABOUT)
    for name in (about["run"], about["model"]):
        if not is_run(name):
            raise ReceivedError(f"{ABOUT}: {ascii(name)[:80]} is no name that syncbed writes")
    if not is_sha256(about["sha256"]):
        raise ReceivedError(f"{ABOUT}: sha256 is no SHA-256")
    shapes = MODELS[about["model"]].parameters
    most = 4 * shapes[tuple(about["shape"])] + MOST_BESIDES
    refuse_special(folder / WEIGHTS)
    if (size := os.lstat(folder / WEIGHTS).st_size) > most:
        raise ReceivedError(f"{WEIGHTS} has {size} bytes, weights of {about['model']} have at most {most}")
    return about


def artefact_files(folder: Path) -> list[Path]:
    """The two files of an artefact, model.json last: nothing else of the folder goes into a store. Raises OSError."""
    refuse_special(folder)
    paths = [folder / name for name in (WEIGHTS, ABOUT) if os.path.lexists(folder / name)]
    for path in paths:
        refuse_special(path)
    return paths


def export(run: str, runs: Path) -> Path:
    """Export the run's last complete checkpoint; returns the folder. Raises UserError in one line."""
    result = store.load(run, runs)
    home = store.folder_of(run, runs)
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
    facts = json.dumps({"run": home.name, "metrics": scores, "syncbed": own_version()})
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
                archives.fetch(container, f"/tmp/work/export/{name}", folder / name, MOST_BYTES)
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
