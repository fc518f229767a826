"""Pickles that were received: looked through before they are loaded, by whatever restricted reader.

A reader that knows only plain values is not enough. Nine bytes have it take a place for two billion memos, and a tuple
of a tuple of a tuple, used as a key, ends the process: its hash is computed by a recursion in C. Standard library only.
"""

import pickletools

TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}
PLACES = {"PUT", "BINPUT", "LONG_BINPUT"}
MOST_TUPLES = 20_000  # a saved tensor has five; a recursion over as many still fits into a stack
MOST_PLACES = 1 << 20  # memos are numbered one by one


def check_pickle(raw: bytes) -> None:
    """Raise ValueError for a pickle that would take more memory or stack than its length lets expect."""
    tuples = 0
    for opcode, argument, _ in pickletools.genops(raw):
        tuples += opcode.name in TUPLES
        if tuples > MOST_TUPLES:
            raise ValueError(f"its pickle makes more than {MOST_TUPLES} tuples")
        if opcode.name in PLACES and isinstance(argument, int) and not 0 <= argument < MOST_PLACES:
            raise ValueError(f"its pickle has a place {argument}; {MOST_PLACES} are the most")
