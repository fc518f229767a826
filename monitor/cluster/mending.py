"""What `up` puts right itself: Compose neither waits for what is paused nor starts again what is unhealthy."""

from concurrent.futures import ThreadPoolExecutor

from docker.models.containers import Container

from monitor.console import say

_SERVICE = "com.docker.compose.service"


def unpause(present: list[Container]) -> list[Container]:
    """Let paused services go on. Returns those that were paused."""
    paused = [container for container in present if container.status == "paused"]
    for container in paused:
        say(f"{container.labels[_SERVICE]} is paused: it goes on")
        container.unpause()
        container.reload()
    return paused


def unhealthy(container: Container) -> bool:
    """Whether it runs and its health check says that it should not be relied on."""
    health = container.attrs["State"].get("Health") or {}
    return container.status == "running" and health.get("Status") == "unhealthy"


def restart(sick: list[Container]) -> None:
    """Start services afresh, all at once."""

    def again(container: Container) -> None:
        say(f"{container.labels[_SERVICE]} is started again")
        container.restart(timeout=2)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(again, sick))
