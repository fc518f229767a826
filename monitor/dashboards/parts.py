"""What dashboards are made of: a frame, rows and panels. Grafana's JSON model, v1 schema, nothing deprecated.

A panel's queries are a dictionary of legend to PromQL. `$node` and `$run` in them are the dashboard's variables.
"""

SOURCE = {"type": "prometheus", "uid": "syncbed-prometheus"}
SCHEMA_VERSION = 39  # Grafana 10.4; newer ones migrate it when they load it
WIDTH, HALF, THIRD, HEIGHT = 24, 12, 8, 8  # in grid cells
TAG = "syncbed"  # of every dashboard; the links between them follow it
MAY_BE_EMPTY = "May be empty: "  # in a panel's description, before the reason; `syncbed dashboards-check` reads it too
NODE = 'node=~"$node"'
RATE = "[$__rate_interval]"
# Only while a chosen run goes on; never an error, as a join is.
OF_RUN = 'and on () syncbed_training_run_info{run=~"$run"}'
RUN_INFO = "syncbed_training_run_info"


def dashboard(
    uid: str,
    title: str,
    description: str,
    panels: list[dict],
    since: str = "now-15m",
    refresh: str = "5s",
    variables: list[dict] | None = None,
    annotation: dict | None = None,
) -> dict:
    """A whole dashboard, which refreshes by itself, with stretches of time as annotations.

    `variables`: what can be chosen; default: runs and nodes. Each changes what is shown. `annotation`: default: runs.
    """
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,  # the code is the source: an edit would be lost with the container
        "graphTooltip": 1,  # one cross-hair over all panels: what happened at the same moment
        "refresh": refresh,
        "time": {"from": since, "to": "now"},
        "timepicker": {"refresh_intervals": ["1s", "5s", "30s", "1m"]},
        "timezone": "browser",
        "annotations": {"list": [annotation or runs()]},
        "links": [_links()],
        "templating": {"list": variables if variables is not None else [run_variable(), node_variable()]},
        "panels": _placed(panels),
    }


def run_variable() -> dict:
    """The choice of runs, the latest first."""
    return variable("run", "Run", RUN_INFO, 2)


def node_variable() -> dict:
    """The choice of nodes."""
    return variable("node", "Node", "syncbed_node_info", 7)


def variable(name: str, label: str, metric: str, sort: int, empty: str = "") -> dict:
    """A choice of label values of a metric: several may be picked, all of them at first.

    `empty`: when there is none although all is well.
    `sort`: Grafana's number of an order: 2 from Z to A, the latest run first; 7 natural, trainer-2 before trainer-10.
    """
    query = f"label_values({metric}, {name})"
    return {
        "type": "query",
        "name": name,
        "label": label,
        "description": f"{MAY_BE_EMPTY}{empty}." if empty else "",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,  # when the time range changes: nodes and runs come and go
        "sort": sort,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
    }


def row(title: str) -> dict:
    """A heading over the panels that follow."""
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": WIDTH, "h": 1}}


def series(
    title: str,
    description: str,
    unit: str,
    queries: dict[str, str],
    *,
    empty: str = "",
    stacked: bool = False,
    width: int = HALF,
    **defaults,
) -> dict:
    """A time series. A legend that contains "limit" or "formula" is drawn as a dashed line.

    `empty`: when it has no data although all is well. Without it, no data is a fault.
    `defaults`: further field options of Grafana, such as min, max, decimals.
    """
    dashed = {
        "matcher": {"id": "byRegexp", "options": ".*(limit|formula).*"},
        "properties": [
            {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
            {"id": "custom.fillOpacity", "value": 0},
        ],
    }
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    if stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    curves = panel("timeseries", title, description, unit, queries, empty=empty, width=width)
    curves["fieldConfig"]["defaults"] |= {"custom": custom} | defaults
    curves["fieldConfig"]["overrides"] = [dashed]
    curves["options"] = {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}
    return curves


LEGEND = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]}


def panel(
    kind: str,
    title: str,
    description: str,
    unit: str,
    queries: dict[str, str],
    *,
    empty: str = "",
    width: int = HALF,
    height: int = HEIGHT,
    form: str = "time_series",
    instant: bool = False,
) -> dict:
    """A panel of any kind, without options.

    `form`: time_series, table or heatmap. `instant`: one value, as of the end of the time range, instead of a curve.
    """
    common = {"datasource": SOURCE, "format": form, "range": not instant, "instant": instant, "interval": "1s"}
    defaults = {"unit": unit}
    if empty:
        defaults["noValue"] = "no data: " + empty
    return {
        "type": kind,
        "title": title,
        "description": f"{description} {MAY_BE_EMPTY}{empty}." if empty else description,
        "datasource": SOURCE,
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend} | common
            for i, (legend, expr) in enumerate(queries.items())
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "gridPos": {"w": width, "h": height},
    }


def runs() -> dict:
    """Every chosen run as a coloured stretch of time, from its start to its end, with what it was."""
    text = "{{sync}}, {{model}} on {{data}}, {{nodes}} nodes, {{precision}}"
    return stretches("Runs", RUN_INFO + '{run=~"$run"}', "{{run}}", text, "sync,model")


def stretches(name: str, query: str, title: str, text: str, tags: str) -> dict:
    """An annotation for each series of a query, for as long as it is there.

    The query stands there twice: Grafana reads it from `target`, older versions from the annotation itself.
    """
    asked = {"expr": query, "interval": "1s"}
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "target": {"refId": "Anno", "datasource": SOURCE, "range": True, "instant": False} | asked,
        "expr": asked["expr"],
        "step": asked["interval"],
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": tags,
        "useValueForTime": False,
    }


def _links() -> dict:
    """The other dashboards, with the same time, run and nodes."""
    return {
        "type": "dashboards",
        "title": "",
        "tags": [TAG],
        "includeVars": True,
        "keepTime": True,
        "icon": "external link",
        "tooltip": "",
        "targetBlank": False,
        "asDropdown": False,
        "url": "",
    }


def _placed(panels: list[dict]) -> list[dict]:
    """Give every panel an id and a place, left to right and downwards."""
    x = y = height = 0
    placed = []
    for number, item in enumerate(panels, 1):
        size = item["gridPos"]
        if x + size["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        placed.append(item | {"id": number, "gridPos": {"x": x, "y": y} | size})
        x, height = x + size["w"], max(height, size["h"])
    return placed
