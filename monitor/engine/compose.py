"""The `docker` command and Compose v2, which starts services."""

import json
import os
import shutil
import subprocess

from monitor.checkout import ROOT
from monitor.engine.sdk import explain_text
from monitor.errors import UserError


def docker_cli() -> str:
    """The `docker` command, which builds images. Raises UserError when it is missing."""
    command = shutil.which("docker")
    if not command:
        raise UserError("the docker command is missing: install Docker (sudo apt-get install docker.io)")
    return command


def compose_command() -> tuple[list[str], str]:
    """The command of Compose v2 and its version. Raises UserError when there is none."""
    old = ""
    for command in ([docker_cli(), "compose"], ["docker-compose"]):
        try:
            answer = subprocess.run([*command, "version", "--format", "json"], capture_output=True, timeout=30)
            version = json.loads(answer.stdout)["version"].lstrip("v")
        except (OSError, ValueError, KeyError, subprocess.SubprocessError):
            if command == ["docker-compose"] and shutil.which("docker-compose"):
                old = " (the docker-compose found is version 1)"
            continue
        if int(version.split(".")[0]) >= 2:
            return command, version
    raise UserError(
        f"Docker Compose v2 is missing{old}: install the package docker-compose-plugin (Docker's), docker-compose-v2 "
        "(Ubuntu) or docker-compose from Debian 13, or put its binary at ~/.docker/cli-plugins/docker-compose"
    )


def compose(project: str, variables: dict[str, str], *arguments: str) -> None:
    """Run Compose on our file, quietly, with these variables in its environment.

    Raises UserError or RunFailed with the last line that Compose printed.
    """
    command, _ = compose_command()
    ended = subprocess.run(
        [*command, "--progress", "quiet", "-p", project, "-f", str(ROOT / "compose.yaml"), *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise explain_text(ended.stderr or ended.stdout)
