"""Sets of runs: sweeps, comparisons, and the five course reports with their claims."""
