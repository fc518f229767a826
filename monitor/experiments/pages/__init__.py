"""Pages of sweeps and of reproduced reports."""
