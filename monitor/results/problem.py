"""What pydantic finds wrong, in one line."""

from pydantic import ValidationError

from monitor.text import one_line


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong: where, what stands there, and what would do."""
    first = error.errors(include_url=False)[0]
    place, message = list(first["loc"]), first["msg"]
    if place[-1:] == ["int"]:  # the first of the types that a result's number may have
        place, message = place[:-1], "Input should be a number"
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    value = "" if isinstance(first["input"], dict | list) else f" = {one_line(repr(first['input']), 80)}"
    colon = ": " if where or value else ""
    return " ".join(f"{where}{value}{colon}{message[0].lower()}{message[1:]}".split())
