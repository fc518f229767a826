"""compose.yaml as text: what every service must have, and that Compose takes it with nothing set."""

import json
import os
import re
import subprocess

import pytest
import yaml

from monitor import checkout
from monitor.engine import archives, compose, images
from monitor.errors import UserError
from trainer.spec import MAX_NODES

COMPOSE = yaml.safe_load((checkout.ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
NODES = {name: service for name, service in SERVICES.items() if name.startswith("trainer-")}


def test_there_is_a_node_for_every_rank_with_its_environment():
    assert list(NODES) == [f"trainer-{rank}" for rank in range(MAX_NODES)]
    for rank, (name, node) in enumerate(NODES.items()):
        assert node["hostname"] == name
        environment = node["environment"]
        assert environment["RANK"] == str(rank) and environment["NODE_NAME"] == name
        assert environment["MASTER_ADDR"] == "trainer-0" and environment["MASTER_PORT"] == "29500"
        assert environment["WORLD_SIZE"] == "${NODES:-4}"
        assert ("profiles" in node) == (rank >= 4), "docker compose up alone starts four"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name):
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["init"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in ("0", "root")
    assert (
        service["mem_limit"] == service["memswap_limit"]
        and service.keys() & {"cpus", "cpu_quota"}
        and service["pids_limit"]
    )
    assert service["restart"] == "unless-stopped"
    assert service["stop_grace_period"] == ("12s" if name == "serve" else "3s")
    assert service["logging"]["driver"] == "json-file" and set(service["logging"]["options"]) == {
        "max-size",
        "max-file",
    }
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["pull_policy"] == "never", "nothing is downloaded at run time"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert not any(volume.startswith((".", "/", "~", "$")) for volume in service.get("volumes", ())), "no bind mount"
    assert service["labels"]["syncbed.project"] == "${COMPOSE_PROJECT_NAME}"
    assert not {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc"} & set(service)


def test_every_nodes_files_are_of_the_nodes_user_and_of_a_group_of_its_own():
    users = {name: node["user"].split(":") for name, node in NODES.items()}
    assert {user for user, _ in users.values()} == {str(archives.NODE_UID)}
    groups = {int(group) for _, group in users.values()}
    assert len(groups) == MAX_NODES and not groups & {0, archives.NODE_UID}, "the volume's, and the orchestrator's"


def test_where_a_node_can_write_there_is_a_size_or_a_watch():
    for node in NODES.values():
        assert node["read_only"] and node["volumes"] == ["data:/data:ro", "runs:/runs"]
        assert node["shm_size"] and all(re.search(r"size=\d+m$", mount) for mount in node["tmpfs"])


def test_data_is_read_only_in_nodes():
    assert all("data:/data:ro" in node["volumes"] and "runs:/runs" in node["volumes"] for node in NODES.values())


def share_a_network(one, other):
    return bool(set(SERVICES[one]["networks"]) & set(SERVICES[other]["networks"]))


@pytest.mark.parametrize("node", NODES)
def test_a_node_reaches_no_port_that_trusts_its_network(node):
    assert SERVICES[node]["networks"] == ["nodes"], "one network, whose interface is shaped and cut off"
    assert not share_a_network(node, "serve") and not share_a_network(node, "grafana")
    assert share_a_network(node, "prometheus"), "it scrapes the agent"


def test_prometheus_listens_in_the_network_that_nodes_are_not_in():
    prometheus = SERVICES["prometheus"]
    (listens,) = [word for word in prometheus["command"] if "listen-address" in word]
    name, _, port = listens.removeprefix("--web.listen-address=").rpartition(":")
    networks = prometheus["networks"]
    assert [network for network, has in networks.items() if has and name in has["aliases"]] == ["monitoring"]
    assert name not in SERVICES and port == "9090", "a service's name is known in all of its networks"
    assert prometheus["healthcheck"]["test"][-3:] == [port, "/-/ready", name]
    scraped = yaml.safe_load((checkout.ROOT / "images/prometheus/prometheus.yml").read_text())["scrape_configs"]
    own = next(job for job in scraped if job["job_name"] == "prometheus")
    assert own["static_configs"][0]["targets"] == [f"{name}:{port}"]


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "ports" in service])
def test_ports_are_published_on_the_network_that_nodes_are_not_in(name):
    """Of a container's networks an engine takes the first by name, all else being equal, for its default route and its
    ports; names that differ after the project's alone are in the same order.
    """
    assert min(SERVICES[name]["networks"]) == "monitoring"


def test_those_that_ask_each_other_share_a_network_which_goes_with_the_cluster():
    assert share_a_network("prometheus", "serve") and share_a_network("grafana", "prometheus")
    assert {name for service in SERVICES.values() for name in service["networks"]} == set(COMPOSE["networks"])
    for network in COMPOSE["networks"].values():
        assert network == {"driver": "bridge", "labels": {"syncbed.project": "${COMPOSE_PROJECT_NAME}"}}


def test_the_server_of_models_is_asked_by_its_name_and_no_page_reads_prometheus():
    command = SERVICES["serve"]["command"]
    assert command[command.index("--name") + 1] == "serve"
    assert "--web.cors.origin=none" in SERVICES["prometheus"]["command"], "its default is a wildcard"


def test_services_wait_for_the_health_of_what_they_need():
    assert SERVICES["prometheus"]["depends_on"] == {"trainer-0": {"condition": "service_healthy"}}
    assert SERVICES["grafana"]["depends_on"] == {"prometheus": {"condition": "service_healthy"}}


def test_prometheus_is_bounded():
    command = " ".join(SERVICES["prometheus"]["command"])
    kept = int(re.search(r"retention\.size=(\d+)MB", command)[1])
    room = int(re.search(r"^/prometheus:.*size=(\d+)m$", "\n".join(SERVICES["prometheus"]["tmpfs"]), re.M)[1])
    assert 2 * kept <= room, "room for all that is kept, and for a block as large that is made of smaller ones"
    assert SERVICES["prometheus"]["environment"]["GOMAXPROCS"] == str(SERVICES["prometheus"]["cpus"])
    minutes = int(re.search(r"min-block-duration=(\d+)m", command)[1])
    assert minutes <= 15, "what is not in a block yet, up to half as long again, is not counted until it is"


def test_grafana_shows_itself_to_anyone_and_knows_no_password_that_could_be_guessed():
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true" and environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_BASIC_ENABLED"] == environment["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert not any("PASSWORD" in name for name in environment)
    assert (checkout.ROOT / "grafana/Dockerfile").read_text().endswith('ENTRYPOINT ["/usr/local/bin/start.sh"]\n')


def test_grafana_answers_to_the_address_that_its_port_is_published_on_and_to_no_other_name():
    grafana = SERVICES["grafana"]
    environment, (port,) = grafana["environment"], grafana["ports"]
    address, published, _ = re.fullmatch(r"([0-9.]+):(\$\{.*?\}):(\d+)", port).groups()
    assert (environment["GF_SERVER_DOMAIN"], environment["GF_SERVER_ENFORCE_DOMAIN"]) == (address, "true")
    assert environment["GF_SERVER_ROOT_URL"] == f"http://{address}:{published}/"
    assert f"http://{address}:" in grafana["healthcheck"]["test"][-1]


def started(folder, script):
    """What grafana/start.sh hands over to Grafana's own start, and how it ended."""
    (folder / "run.sh").write_text('#!/bin/sh\necho "$GF_SECURITY_ADMIN_PASSWORD__FILE" "$@"\n')
    (folder / "run.sh").chmod(0o755)
    text = script.replace("exec /run.sh", f"exec {folder}/run.sh")
    own = {"PATH": os.environ["PATH"], "GF_PATHS_DATA": str(folder)}
    return subprocess.run(["sh", "-c", text, "start.sh", "a word"], env=own, capture_output=True, text=True)


def test_grafanas_admin_has_a_new_password_at_each_start(tmp_path):
    script, secret = (checkout.ROOT / "grafana/start.sh").read_text(), tmp_path / "admin-password"
    seen = set()
    for _ in range(2):
        done = started(tmp_path, script)
        assert (done.returncode, done.stdout) == (0, f"{secret} a word\n")
        assert secret.stat().st_mode & 0o777 == 0o600
        assert re.fullmatch(r"[A-Za-z0-9+/]{32}\n", secret.read_text())
        seen.add(secret.read_text())
    assert len(seen) == 2
    done = started(tmp_path, script.replace("/dev/urandom", "/dev/null"))
    assert (done.returncode, done.stdout) == (1, ""), "no start without a password: it would be the default one"


def test_dashboards_and_provisioning_name_the_same_data_source():
    folder = checkout.ROOT / "grafana"
    (source,) = yaml.safe_load((folder / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["uid"] == "syncbed-prometheus" and source["url"] == "http://prometheus:9090"
    for dashboard in (folder / "dashboards").glob("*.json"):
        uids = set(re.findall(r'"type": ?"prometheus", ?\s*"uid": ?"([^"]+)"', dashboard.read_text()))
        assert uids <= {source["uid"]}, dashboard.name
        assert "__inputs" not in json.loads(dashboard.read_text())


def test_public_images_are_pinned_to_a_patch_release():
    for image in (images.PYTHON_IMAGE, images.PROMETHEUS_IMAGE, images.GRAFANA_IMAGE):
        assert re.search(r":v?\d+\.\d+\.\d+", image), image
    for dockerfile, image in (
        ("images/trainer/Dockerfile", images.PYTHON_IMAGE),
        ("images/prometheus/Dockerfile", images.PROMETHEUS_IMAGE),
        ("grafana/Dockerfile", images.GRAFANA_IMAGE),
    ):
        assert f"={image}\n" in (checkout.ROOT / dockerfile).read_text(), f"{dockerfile} has another default"


def test_dockerfiles_build_with_the_classic_builder():
    for path in [*(checkout.ROOT / "images").rglob("*Dockerfile"), checkout.ROOT / "grafana/Dockerfile"]:
        text = path.read_text()
        assert "--mount" not in text and "<<" not in text and "--chmod" not in text, path


def test_compose_takes_it_with_nothing_set():
    try:
        command, _ = compose.compose_command()
    except UserError as error:
        pytest.skip(str(error))
    bare = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run(
        [*command, "-f", str(checkout.ROOT / "compose.yaml"), "config", "--format", "json"],
        env=bare,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    config = json.loads(done.stdout)
    assert config["name"] == "syncbed"
    assert set(config["services"]) == {*(f"trainer-{rank}" for rank in range(4)), "prometheus", "grafana"}
    assert config["services"]["trainer-0"]["labels"]["syncbed.project"] == "syncbed"
