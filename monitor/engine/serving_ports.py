"""The ports of the cluster's server of models, as compose.yaml takes them."""

from docker.models.containers import Container

from monitor.engine.naming import ROLE_LABEL

SERVICE = "serve"  # and its role
VARIABLES = {"SERVE_PORT": 8080, "SERVE_MANAGEMENT_PORT": 8081, "SERVE_METRICS_PORT": 8082}  # to the port inside


def ports_of(present: list[Container]) -> dict[str, str]:
    """The variables that let a server which is there keep its ports; empty without one."""
    for container in present:
        if container.labels.get(ROLE_LABEL) == SERVICE:
            bound = container.attrs["HostConfig"]["PortBindings"]
            return {name: bound[f"{inside}/tcp"][0]["HostPort"] for name, inside in VARIABLES.items()}
    return {}
