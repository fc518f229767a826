"""RESUME=: what it finds, what it takes over, what it refuses. In one line that says what would do."""

import json
import os
from dataclasses import asdict

import pytest
from report_cases import begun, write_document

from monitor.data.catalogue import prepare
from monitor.errors import UserError
from monitor.run import resume
from trainer.checkpoint_folder import Complete, sha256
from trainer.spec import RunSpec, SpecError

SPEC = RunSpec(sync="ddp", nodes=2, batch=8, steps=40, seed=3)


def write_run(runs, name="20260101-a", steps=(20, 40), spec=SPEC, key="tiny-1"):
    run = runs / name
    for step in steps:
        folder = run / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "model.pt").write_bytes(b"weights")
        files = {"model.pt": {"bytes": 7, "sha256": sha256(folder / "model.pt")}}
        (folder / "complete.json").write_text(json.dumps(asdict(Complete(step, 1, 2, asdict(spec), {}, files))))
    run.mkdir(exist_ok=True)
    data = {"label": "tiny images", "key": key}
    write_document(run, begun(name, "failed", schema=1, data=data))
    (runs / "latest").unlink(missing_ok=True)
    (runs / "latest").symlink_to(name)
    return run


@pytest.mark.parametrize(
    "wanted", ["latest", "20260101-a", "{runs}/20260101-a", "{runs}/latest/checkpoints/step-000040"]
)
def test_the_last_complete_checkpoint_is_found(tmp_path, wanted):
    run = write_run(tmp_path)
    (run / "checkpoints/step-000060").mkdir()  # was being written
    found = resume.find(wanted.format(runs=tmp_path), tmp_path)
    assert (found.run_id, found.step, found.spec) == ("20260101-a", 40, SPEC)
    assert (found.data_key, found.data_label) == ("tiny-1", "tiny images")
    earlier = resume.find(f"{tmp_path}/20260101-a/checkpoints/step-000020", tmp_path)
    assert earlier.step == 20


def test_what_is_not_there_or_not_whole_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^RESUME=nope: no such run in .* \(newest: none yet\), and no folder"):
        resume.find("nope", tmp_path)
    run = write_run(tmp_path)
    with pytest.raises(UserError, match=r"RESUME=: no such run in .* \(newest: 20260101-a\)"):
        resume.find("", tmp_path)
    write_run(tmp_path, "20260102-b", steps=())
    with pytest.raises(
        UserError, match=r"^RESUME=latest: run 20260102-b has no complete checkpoint; RESUME=20260101-a has$"
    ):
        resume.find("latest", tmp_path)
    (run / "checkpoints/step-000040/model.pt").write_bytes(b"weighty")
    with pytest.raises(
        UserError, match=r"RESUME=20260101-a: .*step-000040/model.pt: damaged.*; RESUME=.*step-000020 is"
    ):
        resume.find("20260101-a", tmp_path)
    os.truncate(run / "checkpoints/step-000040/complete.json", 20)
    with pytest.raises(UserError, match=r"complete.json: cannot be read"):
        resume.find("20260101-a", tmp_path)


def test_settings_that_are_not_given_are_the_old_runs(tmp_path):
    write_run(tmp_path)
    source = resume.find("latest", tmp_path)
    longer = source.spec_of({"STEPS": "80", "EVERY": "5", "DEADLINE": "60", "NODES": "2"})
    assert asdict(longer) == asdict(SPEC) | {"steps": 80, "every_steps": 5, "deadline_seconds": 60.0}
    assert asdict(source.spec_of({"EPOCHS": "3"})) == asdict(SPEC) | {"steps": None, "epochs": 3}
    assert source.spec_of({}) == SPEC


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("NODES", "3", "2"), ("BATCH", "16", "8"), ("LR", "0.2", "0.1"), ("SYNC", "single", "ddp"), ("SEED", "4", "3")],
)
def test_another_computation_is_refused_by_name(tmp_path, name, value, shown):
    write_run(tmp_path)
    with pytest.raises(SpecError) as caught:
        resume.find("latest", tmp_path).spec_of({name: value, "STEPS": "80"})
    assert str(caught.value) == (
        f"{name}={value}: run 20260101-a was computed with {shown}; "
        "going on, only STEPS, EPOCHS, EVERY, EVALUATE, TENSORBOARD, DEADLINE may differ"
    )


def test_a_run_that_has_no_step_left_is_refused(tmp_path):
    write_run(tmp_path)
    source = resume.find("latest", tmp_path)
    with pytest.raises(UserError, match=r"it has done 40 steps already, STEPS=40 leaves none; STEPS=80 would go on"):
        source.check_length(SPEC, 64)
    with pytest.raises(UserError, match=r"EPOCHS=5, 40 steps leaves none"):
        source.check_length(source.spec_of({"EPOCHS": "5"}), 64)
    source.check_length(source.spec_of({"EPOCHS": "6"}), 64)


def test_the_data_is_the_old_runs_or_refused(tmp_path):
    cache, said = tmp_path / "cache", []
    made = prepare("synthetic", seed=3, data_dir=None, cache=cache, say=said.append)
    spec = RunSpec(sync="ddp", data="synthetic", nodes=2, batch=8, seed=3)
    write_run(tmp_path, spec=spec, key=made.key)
    found = resume.find("latest", tmp_path).data(None, cache, said.append)
    assert found.path == made.path
    write_run(tmp_path, "20260103-c", spec=spec, key="other-images")
    with pytest.raises(
        UserError, match=r"it was trained on tiny images \(other-images\), this is .*synthetic.*DATA_DIR="
    ):
        resume.find("latest", tmp_path).data(None, cache, said.append)


@pytest.mark.parametrize("to", ["../elsewhere", "{elsewhere}", "20260101-a/../../elsewhere", "link"])
@pytest.mark.parametrize("word", ["latest", "{runs}/latest", "{runs}/latest/checkpoints/step-000040"])
def test_latest_is_not_gone_on_from_where_it_leads_out_of_the_runs_folder(tmp_path, to, word):
    runs, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    write_run(runs)
    (runs / "20260101-a").rename(elsewhere)
    (runs / "20260101-a").mkdir()
    (runs / "link").symlink_to(elsewhere)
    (runs / "latest").unlink()
    (runs / "latest").symlink_to(to.format(elsewhere=elsewhere))
    with pytest.raises(UserError, match=r"^run latest: .*latest points to .*, which is no run beside it; remove the"):
        resume.find(word.format(runs=runs), runs)


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/step-000040"])
def test_a_checkpoint_that_is_a_link_is_not_gone_on_from(tmp_path, place):
    run = write_run(tmp_path / "runs", steps=(40,))
    (run / place).rename(tmp_path / "step-000040")
    (run / place).symlink_to(tmp_path / "step-000040")
    for word in ("20260101-a", f"{run}/checkpoints/step-000040"):
        with pytest.raises(UserError, match=r"^(RESUME|run)"):
            resume.find(word, tmp_path / "runs")


@pytest.mark.parametrize(
    "key", ["../elsewhere", "{tmp}/elsewhere", "..", ".", "", "a/../../elsewhere", "a\nb", "x" * 300]
)
def test_the_data_of_a_received_run_is_of_the_cache_alone(tmp_path, key):
    """Its key is a folder's name, and whole data lies elsewhere."""
    spec = RunSpec(sync="ddp", nodes=2, batch=8, data="synthetic")
    whole = prepare("synthetic", seed=42, data_dir=None, cache=tmp_path, say=lambda _: None)
    whole.path.rename(tmp_path / "elsewhere")
    write_run(tmp_path / "runs", spec=spec, key=key.format(tmp=tmp_path))
    source = resume.find("latest", tmp_path / "runs")
    with pytest.raises(UserError, match=r"^RESUME=20260101-a: it was trained on tiny images"):
        source.data(None, tmp_path / "cache", lambda _: None)
