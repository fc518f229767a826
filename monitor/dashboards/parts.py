"""What dashboards are made of: a frame, rows and time series. Grafana's JSON model, v1 schema, nothing deprecated."""

SOURCE = {"type": "prometheus", "uid": "syncbed-prometheus"}
SCHEMA_VERSION = 39  # Grafana 10.4; newer ones migrate it when they load it
WIDTH, HALF, HEIGHT = 24, 12, 8  # in grid cells


def dashboard(uid: str, title: str, description: str, panels: list[dict], variables: list[dict]) -> dict:
    """A whole dashboard that refreshes with every scrape and shows the last 15 minutes."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["syncbed"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,  # one cross-hair over all panels: what happened at the same moment
        "refresh": "1s",
        "time": {"from": "now-15m", "to": "now"},
        "timepicker": {"refresh_intervals": ["1s", "5s", "30s", "1m"]},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": variables},
        "panels": _placed(panels),
    }


def variable(name: str, label: str, metric: str) -> dict:
    """A choice of label values of a metric: several may be picked, all of them at first."""
    query = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # when the time range changes: nodes come and go with the cluster
        "sort": 7,  # natural: trainer-2 before trainer-10
        "multi": True,
        "includeAll": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def row(title: str) -> dict:
    """A heading over the panels that follow."""
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": WIDTH, "h": 1}}


def series(title: str, description: str, unit: str, queries: dict[str, str], **defaults) -> dict:
    """A time series; `queries` is legend to PromQL. A legend that contains "limit" is drawn as a dashed line."""
    common = {"datasource": SOURCE, "range": True, "interval": "1s"}  # the scrape interval: rates over 4 s, no less
    targets = [
        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend, **common}
        for i, (legend, expr) in enumerate(queries.items())
    ]
    dashed = {
        "matcher": {"id": "byRegexp", "options": ".*limit.*"},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "custom": custom, **defaults}, "overrides": [dashed]},
        "options": {
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "gridPos": {"w": HALF, "h": HEIGHT},
    }


def _placed(panels: list[dict]) -> list[dict]:
    """Give every panel an id and a place, left to right and downwards."""
    x = y = 0
    placed = []
    for number, panel in enumerate(panels, 1):
        size = panel["gridPos"]
        if x + size["w"] > WIDTH:
            x, y = 0, y + HEIGHT
        placed.append({**panel, "id": number, "gridPos": {"x": x, "y": y, **size}})
        x += size["w"]
        if panel["type"] == "row":
            x, y = 0, y + 1
    return placed
