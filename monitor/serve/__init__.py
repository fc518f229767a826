"""A run's model, exported, and served behind HTTP here or in the cluster."""
