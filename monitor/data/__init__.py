"""Data sets: found, fetched, checked and prepared once, beside the nodes. Ranks only read what was prepared."""
