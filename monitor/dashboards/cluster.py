"""The Cluster dashboard: what every node uses, against what it may use, and which alerts fire."""

from monitor.dashboards.parts import HEIGHT, NODE, RATE, THIRD, WIDTH, dashboard, panel, row, series

_ALERTS = 'max by (alertname, severity, node, rank) (ALERTS{alertstate="firing"})'
_COLOURS = {"mode": "fixed", "fixedColor": "red"}


def build() -> dict:
    """The dashboard's JSON model."""
    return dashboard(
        "syncbed-cluster",
        "Cluster",
        "CPU, memory and network of every node, and the alerts that fire.",
        [
            row("Alerts"),
            _alerts(),
            _scraped(),
            row("CPU"),
            *_cpu(),
            *_throttling(),
            _cpu_by_mode(),
            row("Memory"),
            *_memory(),
            row("Network"),
            *_network(),
            row("Processes"),
            *_processes(),
        ],
    )


def _rate(metric: str, by: str = "node") -> str:
    return f"sum by ({by}) (rate({metric}{{{NODE}}}{RATE}))"


def _alerts() -> dict:
    alerts = panel(
        "state-timeline",
        "Alerts",
        "Alerts that fire, and since when. What each means and what to do: Prometheus' page /alerts.",
        "none",
        {"{{severity}}: {{alertname}} {{node}} {{rank}}": _ALERTS},
        empty="no alert fires",
        width=WIDTH - THIRD,
        height=HEIGHT - 2,
    )
    alerts["fieldConfig"]["defaults"] |= {"color": _COLOURS, "custom": {"fillOpacity": 80, "lineWidth": 0}}
    firing = {"type": "value", "options": {"1": {"text": "fires", "index": 0}}}
    alerts["fieldConfig"]["defaults"]["mappings"] = [firing]
    alerts["options"] = {
        "showValue": "never",
        "mergeValues": True,
        "alignValue": "left",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return alerts


def _scraped() -> dict:
    return series(
        "Scrapes",
        "Share of the last minute's scrapes that each node answered; 1 is all.",
        "percentunit",
        {"{{node}}": f'avg by (node) (avg_over_time(up{{job="node", {NODE}}}[1m]))'},
        min=0,
        max=1,
        width=THIRD,
    ) | {"gridPos": {"w": THIRD, "h": HEIGHT - 2}}


def _cpu() -> list[dict]:
    return [
        series(
            "CPU",
            "Cores in use, user and system together, against the node's quota.",
            "none",
            {
                "{{node}}": _rate("syncbed_node_cpu_seconds_total"),
                "{{node}} limit": f"max by (node) (syncbed_node_cpu_limit_cores{{{NODE}}})",
            },
            min=0,
            decimals=2,
        ),
        series(
            "CPU of the limit",
            "Share of its CPU limit that the node uses, over 10 s.",
            "percentunit",
            {"{{node}}": f"node:syncbed_node_cpu_utilisation:rate10s{{{NODE}}}"},
            min=0,
        ),
    ]


def _throttling() -> list[dict]:
    throttled = _rate("syncbed_node_cpu_throttled_periods_total")
    periods = _rate("syncbed_node_cpu_periods_total")
    return [
        series(
            "CPU throttled",
            "Share of the quota's periods in which the node had used its CPU up and had to wait.",
            "percentunit",
            {"{{node}}": f"{throttled} / ({periods} > 0)"},
            min=0,
            max=1,
            width=THIRD,
        ),
        series(
            "CPU throttled time",
            "Seconds per second that tasks waited for the quota, summed over the node's cores.",
            "s",
            {"{{node}}": _rate("syncbed_node_cpu_throttled_seconds_total")},
            min=0,
            width=THIRD,
        ),
    ]


def _cpu_by_mode() -> dict:
    return series(
        "CPU by mode",
        "Cores in use in user code and in the kernel.",
        "none",
        {"{{node}} {{mode}}": _rate("syncbed_node_cpu_seconds_total", "node, mode")},
        min=0,
        decimals=2,
        width=THIRD,
    )


def _memory() -> list[dict]:
    def of_node(name: str) -> str:
        return f"max by (node) (syncbed_node_memory_{name}_bytes{{{NODE}}})"

    return [
        series(
            "Memory",
            "Working set (usage minus inactive file cache) against the node's limit.",
            "decbytes",
            {"{{node}}": of_node("working_set"), "{{node}} limit": of_node("limit")},
            min=0,
        ),
        series(
            "Memory with page cache",
            "Raw usage, page cache included, and its highest value since the node started.",
            "decbytes",
            {"{{node}}": of_node("usage"), "{{node}} peak": of_node("peak")},
            min=0,
        ),
        series(
            "Memory of the limit",
            "Share of its memory limit that the node's working set takes; at 1 the kernel kills.",
            "percentunit",
            {"{{node}}": f"node:syncbed_node_memory_utilisation:ratio{{{NODE}}}"},
            min=0,
            max=1,
        ),
        series(
            "OOM kills",
            "Processes that the memory limit has killed within the last 5 minutes.",
            "none",
            {"{{node}}": f"sum by (node) (increase(syncbed_node_oom_kills_total{{{NODE}}}[5m]))"},
            min=0,
            decimals=0,
        ),
    ]


def _network() -> list[dict]:
    def rated(title: str, unit: str, metrics: dict[str, str], description: str) -> dict:
        queries = {legend: _rate(f"syncbed_node_network_{metric}_total") for legend, metric in metrics.items()}
        return series(title, description, unit, queries, min=0)

    def one_way(title: str, unit: str, metric: str, description: str) -> dict:
        return rated(title, unit, {"{{node}}": metric}, description)

    def two_ways(title: str, counted: str, description: str) -> dict:
        metrics = {"{{node}} received": f"receive_{counted}", "{{node}} sent": f"transmit_{counted}"}
        return rated(title, "pps", metrics, description)

    return [
        one_way("Network sent", "Bps", "transmit_bytes", "Bytes per second that leave the node, headers included."),
        one_way("Network received", "Bps", "receive_bytes", "Bytes per second that reach the node, headers included."),
        one_way("Packets sent", "pps", "transmit_packets", "Packets per second that leave the node."),
        one_way("Packets received", "pps", "receive_packets", "Packets per second that reach the node."),
        two_ways("Packet drops", "drops", "Packets per second that were dropped, on receipt and on sending."),
        two_ways("Packet errors", "errors", "Packets per second with errors, on receipt and on sending."),
    ]


def _processes() -> list[dict]:
    return [
        series(
            "Processes",
            "Processes in the node; the agent, its init and the ranks with their launchers.",
            "none",
            {"{{node}}": f"max by (node) (syncbed_node_processes{{{NODE}}})"},
            min=0,
            decimals=0,
        ),
        series(
            "Open files",
            "File descriptors that the node's processes have open.",
            "none",
            {"{{node}}": f"max by (node) (syncbed_node_open_files{{{NODE}}})"},
            min=0,
            decimals=0,
        ),
    ]
