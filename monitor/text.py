"""Words for people, which every room of the orchestrator may use."""


def plural(count: float, word: str) -> str:
    """The count with its noun, which gets an s unless the count is 1: "1 node", "3 nodes", "1.5 cores"."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {word}" if count == 1 else f"{number} {word}s"


def one_line(text: str, letters: int) -> str:
    """The text on one line, cut where it has more letters: what comes from outside may be anything."""
    flat = " ".join(text[: letters + 1].splitlines())
    return flat if len(text) <= letters else flat[: letters - 1] + "…"
