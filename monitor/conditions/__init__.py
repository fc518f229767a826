"""What nodes may use and send during a run, and what happens to them: limits, links, faults, as data."""
