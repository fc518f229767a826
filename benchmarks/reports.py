"""Reports and studies at SCALE=quick on this machine's cluster; what they came to is kept beside this file.

    make cluster-up && .venv/bin/python benchmarks/reports.py r1 r2 r3 r4 DATA_DIR=cifar:mnist  # 35 minutes, 2 cores
    make cluster-up NODES=5 && .venv/bin/python benchmarks/reports.py r5 DATA_DIR=mnist         # r5 has up to 5 workers
    make cluster-up && .venv/bin/python benchmarks/reports.py servers link_rate straggler DATA_DIR=svhn  # 60 minutes

The five reports go to benchmarks/reports/, the studies (benchmarks/studies/*.toml) to benchmarks/studies/. Further
words go to each `syncbed reproduce`. Of each its report.md, tables (CSV) and plots (SVG) are kept, with the command.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT, STUDIES = ROOT / "benchmarks" / "reports", ROOT / "benchmarks" / "studies"
REPORTS = ("r1", "r2", "r3", "r4", "r5")


def reproduce(name: str, words: list[str]) -> None:
    """Run one report or study to its end and keep what it wrote. Exits with its code when it fails."""
    study = name not in REPORTS
    preset = str((STUDIES / f"{name}.toml").relative_to(ROOT)) if study else name
    command = ["reproduce", f"REPORT={preset}", "SCALE=quick", *words]
    process = subprocess.run([sys.executable, "-m", "monitor.cli", *command], cwd=ROOT)
    if process.returncode:
        sys.exit(process.returncode)
    sweep, folder = ROOT / "sweeps" / f"{name}-quick", (STUDIES if study else KEPT) / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sweep / "report", folder / "report")
    minutes = sum(tried["seconds"] for tried in json.loads((sweep / "sweep.json").read_text())["tries"]) / 60
    command_words = " ".join(word for word in command if not word.startswith(("DATA_DIR", "DATA_CACHE")))
    text = (sweep / "report.md").read_text()
    (folder / "report.md").write_text(
        f"Made by `syncbed {command_words}`; its runs took {minutes:.1f} minutes.\n\n{text}"
    )


def main() -> None:
    names = [*REPORTS, *sorted(path.stem for path in STUDIES.glob("*.toml"))]
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="+", help=f"which of {', '.join(names)}, and settings of every run")
    words = parser.parse_args().words
    for name in (word for word in words if word in names):
        reproduce(name, [word for word in words if word not in names])


if __name__ == "__main__":
    main()
