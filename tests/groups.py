"""Which tests stay together when tests run side by side."""


def group(nodeid: str) -> str:
    """What a test belongs to: those that share the cluster, those that start ranks on this machine, or its file."""
    path = nodeid.split("::")[0]
    _, folder, *_ = path.split("/")
    return folder if folder in ("cluster", "local") else path
