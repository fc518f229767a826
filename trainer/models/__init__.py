"""Models, one family a file, and how a run's model is built."""
