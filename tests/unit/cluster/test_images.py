"""Keys of images, the CA bundle, and the way from a registry that does not answer to images from packages."""

import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.errors import ImageNotFound
from wheel_indexes import SECRETS

from monitor import checkout as checkout_module
from monitor.engine import images
from monitor.errors import BAD_INPUT, FAILED, RunFailed, UserError


class Engine:
    """A Docker client that knows images by tag only."""

    def __init__(self, *tags):
        self.tags = set(tags)
        self.images = self

    def get(self, tag):
        if tag not in self.tags:
            raise ImageNotFound("no such image")
        return SimpleNamespace(id=f"sha256:{tag}", tag=lambda *_: True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of some code and the files that images are made of; no CA named in the environment."""
    code = ("trainer/a.py", "trainer/sub/b.py", "node/c.py", "serving/d.py", "monitor/report/e.py")
    for place in (*code, "images/trainer/Dockerfile", "images/healthy.sh", "images/http-ok.sh"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    for place in ("images/prometheus/Dockerfile", "grafana/Dockerfile", "compose.yaml", ".build/x"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    monkeypatch.setattr(checkout_module, "ROOT", tmp_path)
    monkeypatch.setattr(checkout_module, "BUILD", tmp_path / ".build")
    for name in images._CA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def built(monkeypatch):
    """What would be built, in order, without building it: (dockerfile, tag, arguments)."""
    done = []

    def build(name, dockerfile, tag, arguments=None):
        done.append((dockerfile, tag, arguments))
        engine.tags.add(tag)
        return tag

    def base():
        done.append(("debootstrap", images.DEBIAN_BASE, None))
        engine.tags.add(images.DEBIAN_BASE)
        return images.DEBIAN_BASE

    engine = Engine()
    monkeypatch.setattr(images, "_docker_build", build)
    monkeypatch.setattr(images, "_debian_base", base)
    return SimpleNamespace(done=done, engine=engine)


def test_the_code_hash_changes_with_content_and_names_only(checkout):
    first = images.code_hash()
    assert len(first) == 12 and int(first, 16) >= 0
    (checkout / "trainer/__pycache__").mkdir()
    (checkout / "trainer/__pycache__/a.pyc").write_text("compiled")
    (checkout / "node/c.py").touch()
    (checkout / "images/trainer/Dockerfile").write_text("another")
    assert images.code_hash() == first
    (checkout / "trainer/sub/b.py").write_text("changed")
    changed = images.code_hash()
    (checkout / "trainer/sub/b.py").write_text("trainer/sub/b.py")
    assert changed != first == images.code_hash()
    (checkout / "trainer/a.py").rename(checkout / "trainer/aa.py")
    assert images.code_hash() != first


def test_public_images_are_used_where_a_registry_answers(checkout, built, monkeypatch):
    def pull(self, image):
        built.engine.tags.add(image)
        return True

    monkeypatch.setattr(images._Registry, "pull", pull)
    made = images.ensure(built.engine, {})
    assert [dockerfile for dockerfile, _, _ in built.done] == [
        "images/trainer/Dockerfile",
        "images/prometheus/Dockerfile",
        "grafana/Dockerfile",
    ]
    assert built.done[0][2] == {"BASE_IMAGE": images.PYTHON_IMAGE, "WHEEL_INDEX": "", "CODE": images.code_hash()}
    assert made.grafana and made.trainer.startswith("syncbed-trainer:")
    built.done.clear()
    assert images.ensure(built.engine, {}) == made
    assert built.done == [], "nothing changed: nothing is built"


def test_without_a_registry_images_come_from_packages_and_grafana_is_left_out(checkout, built, monkeypatch, capsys):
    asked = []

    def run(command, **_):
        asked.append(command)
        return SimpleNamespace(returncode=1, stderr="Error response from daemon: no such host\n")

    monkeypatch.setattr(images.subprocess, "run", run)
    made = images.ensure(built.engine, {})
    assert [tag for _, tag, _ in built.done][:2] == [images.DEBIAN_BASE, images.DEBIAN_PROMETHEUS]
    assert made.grafana is None
    said = capsys.readouterr().err
    assert len(asked) == 1, "one failure is enough: the others are not asked for"
    assert said.count("grafana is left out") == 1 and "no such host" in said
    built.done.clear()
    assert images.ensure(built.engine, {}) == made and built.done == [] and len(asked) == 1
    images.ensure(built.engine, {}, ask_again=True)
    assert len(asked) == 2, "`make images` asks again"


@pytest.mark.parametrize(
    ("place", "ships"),
    [
        ("trainer/sub/b.py", True),
        ("node/c.py", True),
        ("serving/d.py", True),
        ("monitor/report/e.py", False),
        ("monitor/report/new.py", False),
    ],
)
def test_only_code_that_runs_in_a_node_makes_another_node_image(checkout, built, place, ships):
    built.engine.tags |= {images.PYTHON_IMAGE, images.PROMETHEUS_IMAGE, images.GRAFANA_IMAGE}
    tags, code = images.ensure(built.engine, {}), images.code_hash()
    built.done.clear()
    (checkout / place).write_text("changed")
    changed = images.ensure(built.engine, {})
    assert (images.code_hash() != code, changed.trainer != tags.trainer) == (ships, ships)
    assert (changed.prometheus, changed.grafana) == (tags.prometheus, tags.grafana)
    assert len(built.done) == ships


def test_a_change_of_code_rebuilds_the_node_image_only(checkout, built, monkeypatch):
    built.engine.tags |= {images.PYTHON_IMAGE, images.PROMETHEUS_IMAGE, images.GRAFANA_IMAGE}
    first = images.ensure(built.engine, {})
    built.done.clear()
    (checkout / "trainer/a.py").write_text("changed")
    second = images.ensure(built.engine, {})
    assert [dockerfile for dockerfile, _, _ in built.done] == ["images/trainer/Dockerfile"]
    assert second.trainer != first.trainer
    assert (second.prometheus, second.grafana) == (first.prometheus, first.grafana)


def test_a_change_of_the_health_checks_request_rebuilds_the_images_that_have_it(checkout, built):
    built.engine.tags |= {images.PYTHON_IMAGE, images.PROMETHEUS_IMAGE, images.GRAFANA_IMAGE}
    images.ensure(built.engine, {})
    built.done.clear()
    (checkout / "images/http-ok.sh").write_text("changed")
    images.ensure(built.engine, {})
    changed = [dockerfile for dockerfile, _, _ in built.done]
    assert changed == ["images/trainer/Dockerfile", "images/prometheus/Dockerfile"]


@pytest.mark.parametrize("tool", ["bash", "wget"])
@pytest.mark.parametrize("host", [[], ["127.0.0.2"]])
@pytest.mark.parametrize(("path", "code"), [("/fine", 0), ("/starting", 1), (None, 1)])
def test_the_health_checks_request_tells_a_200_from_all_else(tmp_path, tool, path, code, host):
    """By Bash, or by wget in an image without Bash; None: nobody listens."""
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed here")
    for name in ("sh", "cat", tool):
        (tmp_path / name).symlink_to(shutil.which(name))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/fine" else 503)
            self.end_headers()
            self.wfile.write(b"HTTP/1.1 200 OK\n")  # a body is no status

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer((host[0] if host else "127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        if path:
            thread.start()
        else:
            server.server_close()
        script = Path(__file__).resolve().parents[3] / "images/http-ok.sh"
        command = ["sh", str(script), str(server.server_port), path or "/fine", *host]
        try:
            done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, timeout=60)
        finally:
            if path:
                server.shutdown()
                thread.join()
    assert min(done.returncode, 1) == code, done.stderr


def test_an_explicit_base_image_wins_and_must_exist(checkout, built, monkeypatch):
    built.engine.tags |= {images.PYTHON_IMAGE, images.PROMETHEUS_IMAGE, images.GRAFANA_IMAGE, "mine:1"}
    images.ensure(built.engine, {"BASE_IMAGE": "mine:1", "WHEEL_INDEX": "https://mirror.example/simple"})
    assert built.done[0][2]["BASE_IMAGE"] == "mine:1"
    assert built.done[0][2]["WHEEL_INDEX"] == "https://mirror.example/simple"
    monkeypatch.setattr(images._Registry, "pull", lambda self, image: False)
    with pytest.raises(UserError, match="BASE_IMAGE=other:1: neither here nor to be pulled"):
        images.ensure(built.engine, {"BASE_IMAGE": "other:1"})


def test_the_ca_bundle_named_by_the_setting_or_the_environment_reaches_the_build(checkout, monkeypatch, capsys):
    target = checkout / ".build/ca.crt"
    none = images._copy_ca(None)
    assert target.read_bytes() == b""
    bundle = checkout / "company.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    monkeypatch.setenv("CURL_CA_BUNDLE", str(bundle))
    some = images._copy_ca(None)
    assert target.read_bytes() == bundle.read_bytes() and some != none
    assert f"{bundle} (from CURL_CA_BUNDLE)" in capsys.readouterr().err
    assert images._copy_ca(None) == some and capsys.readouterr().err == "", "said once"
    other = checkout / "other.pem"
    other.write_text("-----BEGIN CERTIFICATE-----\nother")
    images._copy_ca(str(other))
    assert target.read_bytes() == other.read_bytes(), "the setting wins"


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_a_ca_bundle_that_cannot_be_is_refused(checkout, content):
    bundle = checkout / "ca.pem"
    if content:
        bundle.write_text(content)
    with pytest.raises(UserError, match=f"CA_BUNDLE={bundle}: ") as refused:
        images._copy_ca(str(bundle))
    assert refused.value.exit_code == BAD_INPUT


def test_a_failed_build_shows_its_last_lines_and_says_where_the_rest_is(checkout, capsys):
    script = "for i in $(seq 30); do echo line $i; done; echo broken >&2; exit 3"
    with pytest.raises(RunFailed, match=r"the x could not be built: broken \(\.build/x\.log has it all\)") as failed:
        images._logged("x", "x", ["sh", "-c", script])
    assert failed.value.exit_code == FAILED
    said = capsys.readouterr().err
    assert "line 30" in said and "line 5\n" not in said
    assert "line 1\n" in (checkout / ".build/x.log").read_text()


def test_a_full_disk_is_told_as_such(checkout):
    with pytest.raises(RunFailed, match="disk full"):
        images._logged("x", "x", ["sh", "-c", "echo 'write: no space left on device'; echo more; exit 1"])


def test_unknown_settings_are_refused():
    with pytest.raises(UserError, match="WHEELINDEX=x: no such setting; did you mean WHEEL_INDEX"):
        images.build({"WHEELINDEX": "x"}, None)


def test_outside_a_checkout_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(checkout_module, "ROOT", tmp_path)
    with pytest.raises(UserError, match="checkout"):
        images.ensure(Engine(), {})


@pytest.mark.parametrize("name", ["no such!image", "-x", "a b", "a;b"])
def test_a_base_image_without_a_name_is_refused_before_the_engine_is_asked(name):
    with pytest.raises(UserError, match=f"^BASE_IMAGE={re.escape(name)}: not the name of an image"):
        images._base(None, name)


@pytest.mark.parametrize("index", SECRETS)
def test_a_wheel_index_with_a_secret_is_refused_without_repeating_it(index, checkout, built):
    """sec-08: a build argument is in the image's history for everybody who gets the image."""
    with pytest.raises(UserError, match=r"^WHEEL_INDEX: .*history.*without.*mirror or proxy") as refused:
        images.ensure(built.engine, {"WHEEL_INDEX": index})
    assert "s3cret" not in str(refused.value) and built.done == []


@pytest.mark.parametrize("index", ["https://mirror.example:8443/a/simple", "file:///srv/wheels@2/simple", ""])
def test_a_wheel_index_without_one_is_taken(index):
    images._check_index(index)


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "https_proxy"])
def test_a_proxys_password_is_in_the_environment_of_a_build_and_not_in_its_words(name, checkout, monkeypatch):
    for proxy in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    monkeypatch.setenv(name, "http://user:s3cret@proxy.example:3128")
    calls = []
    monkeypatch.setattr(images.compose, "docker_cli", lambda: "docker")
    monkeypatch.setattr(images.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    monkeypatch.setattr(images, "_logged", lambda what, name, command, variables: calls.append((command, variables)))
    images._docker_build("x", "Dockerfile", "x:1")
    ((command, variables),) = calls
    assert not [word for word in command if "s3cret" in word]
    assert command[command.index("--build-arg") + 1] == name.lower()
    assert variables[name.lower()] == "http://user:s3cret@proxy.example:3128"


DIGEST = "sha256:" + "0a" * 32


@pytest.mark.parametrize("name", ["mine", "mine:1", "host.example:5000/a/mine:1"])
def test_a_base_image_can_be_held_to_its_digest(name, checkout, built):
    base = f"{name}@{DIGEST}"
    built.engine.tags |= {base, images.PROMETHEUS_IMAGE, images.GRAFANA_IMAGE}
    images.ensure(built.engine, {"BASE_IMAGE": base})
    assert built.done[0][2]["BASE_IMAGE"] == base
    assert images.is_pinned(base) and base not in images.by_tag(base)


@pytest.mark.parametrize("digest", ["", "sha256:", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), "md5:0a", f"x@{DIGEST}"])
def test_a_digest_that_is_none_is_refused_before_the_engine_is_asked(digest):
    with pytest.raises(UserError, match="after the @, a digest is sha256: and 64 hexadecimal digits"):
        images._base(None, f"mine@{digest}")


def test_the_bases_of_this_commit_are_named_by_exact_versions():
    for name in images.by_tag(None):
        assert re.search(r":v?\d+\.\d+\.\d+", name), f"{name}: latest moves by itself"


@pytest.mark.parametrize("content", [None, ""])
def test_no_base_is_built_of_packages_that_cannot_be_verified(content, tmp_path):
    """debootstrap itself only warns, and packages run as root."""
    (tmp_path / "bin").mkdir()
    for name, text in {"id": "echo 0", "debootstrap": f"touch {tmp_path}/was-run", "docker": "cat >/dev/null"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    keys = tmp_path / "keys.gpg"
    if content is not None:
        keys.write_text(content)
    variables = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "DEBIAN_KEYRING": str(keys), "TMPDIR": str(tmp_path)}
    script = Path(__file__).parents[3] / "images/base/build.sh"
    done = subprocess.run(["sh", str(script), "x:1"], env=variables, capture_output=True, text=True)
    assert done.returncode == 1 and "install debian-archive-keyring" in done.stderr
    assert not (tmp_path / "was-run").exists()
    assert "--force-check-gpg" in script.read_text()


def test_two_commands_at_once_build_each_image_once(checkout, built, monkeypatch):
    """The second one comes while the first builds: it waits, and finds the images."""
    waits, base = threading.Event(), images._debian_base
    monkeypatch.setattr(images._Registry, "pull", lambda *_: False)
    monkeypatch.setattr("monitor.engine.alone.say", lambda _: waits.set())

    def slow_base():
        assert waits.wait(30)
        return base()

    monkeypatch.setattr(images, "_debian_base", slow_base)
    with ThreadPoolExecutor() as both:
        first, second = (both.submit(images.ensure, built.engine, {}) for _ in range(2))
        assert first.result(30) == second.result(30)
    assert len(built.done) == len(set(dockerfile for dockerfile, _, _ in built.done)), built.done
