"""Where this checkout lies: compose.yaml and images/ are read from it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the checkout: compose.yaml, images/
BUILD = ROOT / ".build"  # logs of builds, and what is copied into images but is no part of the checkout
