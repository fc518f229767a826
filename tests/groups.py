"""Which tests stay together when tests run side by side."""


def group(nodeid: str) -> str:
    """What a test belongs to: those that share the cluster, or those of its file, which share fixtures."""
    path = nodeid.split("::")[0]
    return "cluster" if path.startswith("tests/cluster/") else path
