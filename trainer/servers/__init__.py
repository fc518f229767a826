"""The ranks beside the workers: parameter servers and the evaluator of their weights."""
