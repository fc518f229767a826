"""The five reports at SCALE=quick on this machine's cluster; what they came to is kept in benchmarks/reports/.

    make cluster-up NODES=5 && .venv/bin/python benchmarks/reports.py DATA_DIR=cifar:mnist    # 40 minutes on 2 cores
    .venv/bin/python benchmarks/reports.py --only r2 RUNTIME=local                            # one of them, elsewhere

Further words go to each `syncbed reproduce`. Of each report its report.md, tables (CSV) and plots (SVG) are kept, with
the command.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "reports"
REPORTS = ("r1", "r2", "r3", "r4", "r5")


def reproduce(report: str, words: list[str]) -> None:
    """Run one report to its end and keep what it wrote. Exits with its code when it fails."""
    command = ["reproduce", f"REPORT={report}", "SCALE=quick", *words]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "monitor.cli", *command], cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)
    minutes = (time.monotonic() - began) / 60
    made, kept = ROOT / "sweeps" / f"{report}-quick", KEPT / report
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(made / "report", kept / "report")
    shown = " ".join(word for word in command if not word.startswith(("DATA_DIR", "DATA_CACHE")))
    text = (made / "report.md").read_text()
    (kept / "report.md").write_text(f"Made by `syncbed {shown}` in {minutes:.1f} minutes.\n\n{text}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=REPORTS)
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    for report in [args.only] if args.only else REPORTS:
        reproduce(report, args.words)


if __name__ == "__main__":
    main()
