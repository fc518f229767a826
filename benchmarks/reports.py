"""The five reports at SCALE=quick on this machine's cluster; what they came to is kept in benchmarks/reports/.

    make cluster-up && .venv/bin/python benchmarks/reports.py r1 r2 r3 r4 DATA_DIR=cifar:mnist  # 35 minutes, 2 cores
    make cluster-up NODES=5 && .venv/bin/python benchmarks/reports.py r5 DATA_DIR=mnist         # r5 has up to 5 workers

Further words go to each `syncbed reproduce`. Of each report its report.md, tables (CSV) and plots (SVG) are kept, with
the command.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "reports"
REPORTS = ("r1", "r2", "r3", "r4", "r5")


def reproduce(report: str, words: list[str]) -> None:
    """Run one report to its end and keep what it wrote. Exits with its code when it fails."""
    command = ["reproduce", f"REPORT={report}", "SCALE=quick", *words]
    done = subprocess.run([sys.executable, "-m", "monitor.cli", *command], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    made, kept = ROOT / "sweeps" / f"{report}-quick", KEPT / report
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(made / "report", kept / "report")
    minutes = sum(tried["seconds"] for tried in json.loads((made / "sweep.json").read_text())["tries"]) / 60
    shown = " ".join(word for word in command if not word.startswith(("DATA_DIR", "DATA_CACHE")))
    text = (made / "report.md").read_text()
    (kept / "report.md").write_text(f"Made by `syncbed {shown}`; its runs took {minutes:.1f} minutes.\n\n{text}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="+", help=f"which of {', '.join(REPORTS)}, and settings of every run")
    words = parser.parse_args().words
    for report in (word for word in words if word in REPORTS):
        reproduce(report, [word for word in words if word not in REPORTS])


if __name__ == "__main__":
    main()
