"""The cache: whole folders or none, under kill -9, two processes at once, damage and a full disk."""

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from monitor.data import store
from monitor.data.store import Content, complete, mean_and_std, prepare_once
from monitor.errors import RunFailed, UserError

fork = multiprocessing.get_context("fork")


def content(train=40, test=10) -> Content:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (n, 3, 4, 5), np.uint8) for n in (train, test)]
    labels = [rng.integers(0, 2, n) for n in (train, test)]
    return Content("tiny", images[0], labels[0], images[1], labels[1], ["cat", "dog"], "here", "tiny", augment=True)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_written_is_what_was_made(tmp_path):
    made = content()
    prepared = prepare_once(tmp_path, "tiny", lambda: made, print)
    assert prepared.path == tmp_path / "tiny" and prepared.key == "tiny" and prepared.label == "tiny"
    for name in store.ARRAYS:
        array = np.load(prepared.path / f"{name}.npy", allow_pickle=False)
        assert np.array_equal(array, getattr(made, name))
        assert array.dtype == (np.uint8 if name.endswith("images") else np.int64)
    manifest = json.loads((prepared.path / "manifest.json").read_text())
    assert manifest.pop("sha256") and manifest == prepared.manifest
    assert manifest["shape"] == [3, 4, 5] and manifest["classes"] == ["cat", "dog"] and manifest["augment"] is True
    assert (manifest["schema"], manifest["train_samples"], manifest["test_samples"]) == (1, 40, 10)
    for name, file in manifest["files"].items():
        assert file == {"bytes": (prepared.path / name).stat().st_size, "sha256": store.sha256(prepared.path / name)}
    scaled = made.train_images / 255
    assert np.allclose(manifest["mean"], scaled.mean(axis=(0, 2, 3)), rtol=1e-12)
    assert np.allclose(manifest["std"], scaled.std(axis=(0, 2, 3)), rtol=1e-12)


def test_a_whole_folder_is_not_made_again(tmp_path):
    first = prepare_once(tmp_path, "tiny", content, print)
    again = prepare_once(tmp_path, "tiny", lambda: pytest.fail("made twice"), print, verify=True)
    assert again == first


def test_a_constant_channel_can_be_divided_by():
    images = np.full((3, 2, 4, 4), 51, np.uint8)
    images[0, 1] = 255
    mean, std = mean_and_std(images)
    assert mean == pytest.approx([0.2, (1 + 0.2 * 2) / 3]) and std[0] == 1.0
    assert std[1] == pytest.approx((images[:, 1] / 255).std())


def test_sums_over_several_blocks(monkeypatch):
    monkeypatch.setattr(store, "BLOCK", 7)
    images = content().train_images
    mean, std = mean_and_std(images)
    assert np.allclose(mean, (images / 255).mean(axis=(0, 2, 3))) and np.allclose(
        std, (images / 255).std(axis=(0, 2, 3))
    )


@pytest.mark.parametrize("damage", ["size", "gone", "manifest", "schema"])
def test_a_damaged_folder_is_made_anew(tmp_path, damage):
    first, said = prepare_once(tmp_path, "tiny", content, print), []
    file = first.path / "train_images.npy"
    if damage == "size":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "gone":
        file.unlink()
    elif damage == "manifest":
        (first.path / "manifest.json").write_text('{"schema": 1, "fi')
    else:
        (first.path / "manifest.json").write_text(json.dumps({**first.manifest, "schema": 0}))
    assert prepare_once(tmp_path, "tiny", content, said.append) == first
    damaged = file if damage in ("size", "gone") else first.path / "manifest.json"
    assert said == [f"{damaged} is damaged; tiny is prepared anew"]
    assert complete(first.path, verify=True) == first


def test_verify_finds_a_changed_byte(tmp_path):
    first = prepare_once(tmp_path, "tiny", content, print)
    file = first.path / "test_labels.npy"
    right = file.read_bytes()
    file.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    assert complete(first.path) and not complete(first.path, verify=True)
    prepare_once(tmp_path, "tiny", content, print, verify=True)
    assert file.read_bytes() == right


def _die_at(cache: str, moment: int) -> None:
    """Prepare in this process, killed just before its `moment`-th action on the file system (opening, writing, ...)."""
    left = moment

    def count(event, _):
        nonlocal left
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "write"):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    write = store.HashingFile.write
    store.HashingFile.write = lambda self, block: (write(self, block), self.flush(), count("write", ()))
    sys.addaudithook(count)
    prepare_once(Path(cache), "tiny", content, lambda _: None)


def _forked(target, *args):
    process = fork.Process(target=target, args=args)
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.parametrize("over_damage", [False, True])
def test_killed_at_any_moment(tmp_path, over_damage):
    """kill -9 before each action in turn, until one process gets through: never a partial folder by the real name."""
    whole = prepare_once(tmp_path / "whole", "tiny", content, print)
    for moment in range(1, 200):
        cache = tmp_path / f"killed-{moment}"
        if over_damage:  # an older folder stands in the way
            (prepare_once(cache, "tiny", content, print).path / "test_labels.npy").unlink()
        code = _forked(_die_at, str(cache), moment)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if not over_damage and (cache / "tiny").exists():
            assert complete(cache / "tiny", verify=True)
        again = prepare_once(cache, "tiny", content, lambda _: None)
        assert again.manifest == whole.manifest and complete(again.path, verify=True)
        assert names(cache) == [".tiny.lock", "tiny"]  # what the killed one left is gone
    assert code == 0 and moment > 12


def test_a_leftover_of_another_key_does_no_harm(tmp_path):
    (tmp_path / ".other.tmp").mkdir(parents=True)
    assert prepare_once(tmp_path, "tiny", content, print).path.is_dir()


def test_two_at_once_do_the_work_once(tmp_path):
    entered, waiting, made = fork.Event(), fork.Event(), tmp_path / "made"
    made.touch()

    def make():
        with made.open("a") as file:
            file.write("x")
        entered.set()
        assert waiting.wait(60)  # the other one stands at the lock
        return content()

    def says(line):
        assert line == "waiting for another process that is preparing tiny"
        waiting.set()

    first = fork.Process(target=prepare_once, args=(tmp_path / "cache", "tiny", make, print))
    first.start()
    assert entered.wait(60)
    second = fork.Process(target=prepare_once, args=(tmp_path / "cache", "tiny", make, says))
    second.start()
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert made.read_text() == "x" and complete(tmp_path / "cache" / "tiny", verify=True)


def test_the_lock_of_a_killed_holder_is_free(tmp_path):
    entered = fork.Event()

    def make():
        entered.set()
        signal.pause()

    holder = fork.Process(target=prepare_once, args=(tmp_path, "tiny", make, print))
    holder.start()
    assert entered.wait(60)
    holder.kill()
    holder.join(60)
    assert prepare_once(tmp_path, "tiny", content, lambda _: pytest.fail("waited")).path.is_dir()


def test_an_error_while_making_leaves_nothing(tmp_path):
    def make():
        raise UserError("bad file")

    with pytest.raises(UserError, match=r"^bad file$"):
        prepare_once(tmp_path, "tiny", make, print)
    assert names(tmp_path) == [".tiny.lock"]


def _limited(cache: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    try:
        prepare_once(Path(cache), "tiny", lambda: content(train=2000), print)
    except RunFailed as error:
        Path(cache, "error").write_text(str(error))


def test_a_file_that_cannot_grow(tmp_path):
    assert _forked(_limited, str(tmp_path)) == 0
    assert (tmp_path / "error").read_text() == f"{tmp_path}: no space left while preparing tiny; free some space there"
    assert names(tmp_path) == [".tiny.lock", "error"]


def test_a_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root with CAP_SYS_ADMIN")
    try:
        with pytest.raises(RunFailed) as raised:
            prepare_once(disk, "tiny", lambda: content(train=2000), print)
        assert str(raised.value) == f"{disk}: no space left while preparing tiny; free some space there"
        assert raised.value.exit_code == 1 and names(disk) == [".tiny.lock"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as raised:
        prepare_once(tmp_path / "file" / "cache", "tiny", content, print)
    assert str(raised.value) == (
        f"{tmp_path}/file/cache: cannot keep prepared data there (Not a directory); "
        "make it writable, or DATA_CACHE=folder"
    )
    assert raised.value.exit_code == 2


def test_where_there_are_no_file_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(store.files, "fcntl", None)
    with pytest.raises(UserError, match=r"^preparing data needs file locks .* on Windows run syncbed inside WSL 2$"):
        prepare_once(tmp_path, "tiny", content, print)


def test_content_of_another_kind_has_another_checksum(tmp_path):
    one = prepare_once(tmp_path, "one", content, print)
    other = content()
    two = prepare_once(tmp_path, "two", lambda: replace(other, train_labels=1 - other.train_labels), print)
    differ = {n for n in one.manifest["files"] if one.manifest["files"][n] != two.manifest["files"][n]}
    assert differ == {"train_labels.npy"}


def edited(manifest: dict, **changes) -> str:
    return json.dumps({**manifest, **changes})


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: "",
        lambda m: "[]",
        lambda m: edited(m, std=[0, 0, 0]),
        lambda m: edited(m, files={}),
        lambda m: edited(m, train_samples=7),
        lambda m: edited(m, sha256="0"),
        lambda m: edited(m, schema=0),
        lambda m: json.dumps({key: value for key, value in m.items() if key != "name"}),
        lambda m: json.dumps({key: value for key, value in m.items() if key != "sha256"}),
    ],
)
def test_a_damaged_manifest_is_written_anew_and_without_a_source_named(damage, tmp_path):
    made = content()
    before = prepare_once(tmp_path, "tiny", lambda: made, print)
    manifest = before.path / "manifest.json"
    good, said = manifest.read_text(), []

    def unavailable():
        raise store.Unavailable("host: no answer")

    manifest.write_text(damage(json.loads(good)))
    with pytest.raises(store.Unavailable, match=r"tiny/manifest\.json is damaged, and host: no answer"):
        prepare_once(tmp_path, "tiny", unavailable, said.append)
    assert prepare_once(tmp_path, "tiny", lambda: made, said.append).manifest == before.manifest
    assert manifest.read_text() == good
    assert said[-1] == f"{manifest} is damaged; tiny is prepared anew"
