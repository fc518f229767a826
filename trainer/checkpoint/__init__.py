"""The state of a run between two steps, and the files that hold it."""
