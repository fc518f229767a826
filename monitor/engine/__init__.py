"""Docker and Compose: the one room that knows the engine's words. Images, containers, limits of containers."""
