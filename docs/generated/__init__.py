"""The pages and pictures that the code knows: `.venv/bin/python -m docs.generated` writes them.

They are committed, so that they can be read without building anything.
tests/unit/docs/test_docs_reference.py holds each against what this package makes of the code.
"""

from pathlib import Path

from docs.generated import commands, rooms, runs, strategies

FOLDER = Path(__file__).resolve().parents[1]
PAGES = {
    "reference/settings.md": runs.settings,
    "reference/strategies.md": strategies.strategies,
    "reference/strategies-exact.md": strategies.strategies_exact,
    "reference/strategies-relaxed.md": strategies.strategies_relaxed,
    "reference/compression.md": strategies.compression,
    "reference/models-and-data.md": runs.models_and_data,
    "reference/commands.md": commands.commands,
    "reference/cluster-commands.md": commands.cluster_commands,
    "reference/reports.md": runs.reports,
    "images/rooms.svg": rooms.rooms,
}
