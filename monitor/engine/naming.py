"""The name of a cluster: the Compose project that its containers, network and volumes carry."""

import re

from monitor.errors import UserError

PROJECT_LABEL, ROLE_LABEL, CODE_LABEL = "syncbed.project", "syncbed.role", "syncbed.code"
DEFAULT_PROJECT = "syncbed"


def project(settings: dict[str, str]) -> str:
    """The cluster's name. Raises UserError for what Compose would not take."""
    name = settings.get("PROJECT", DEFAULT_PROJECT)
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", name):
        raise UserError(
            f"PROJECT={name}: lower-case letters, digits, - and _, starting with a letter or digit, at most 40"
        )
    return name


def words(project: str) -> str:
    """What names a cluster behind `make cluster-up` and its like, in lines that say what would help."""
    return "" if project == DEFAULT_PROJECT else f" PROJECT={project}"
