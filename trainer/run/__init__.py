"""A worker: the training loop, its evaluation and its live figures."""
