"""What result.json says of a run; docs/result.md describes each field."""

SCHEMA = 1
RUNNING, FINISHED, FAILED = "running", "finished", "failed"
