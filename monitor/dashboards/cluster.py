"""The Cluster dashboard: what every node uses, against what it may use, and how far the training is."""

from monitor.dashboards.parts import dashboard, row, series, variable

_NODE = '{node=~"$node"}'
_RATE = "[$__rate_interval]"


def build() -> dict:
    """The dashboard's JSON model."""
    return dashboard(
        "syncbed-cluster",
        "Cluster",
        "CPU, memory and network of every node, and the training that runs on them.",
        [row("CPU"), *_cpu(), row("Memory"), *_memory(), row("Network"), *_network(), row("Training"), *_training()],
        [variable("node", "Node", "syncbed_node_info")],
    )


def _rate(metric: str, by: str = "node") -> str:
    return f"sum by ({by}) (rate({metric}{_NODE}{_RATE}))"


def _cpu() -> list[dict]:
    throttled = _rate("syncbed_node_cpu_throttled_periods_total") + " / " + _rate("syncbed_node_cpu_periods_total")
    return [
        series(
            "CPU",
            "Cores in use, user and system together, against the node's quota.",
            "none",
            {
                "{{node}}": _rate("syncbed_node_cpu_seconds_total"),
                "{{node}} limit": "syncbed_node_cpu_limit_cores" + _NODE,
            },
            min=0,
            decimals=2,
        ),
        series(
            "CPU throttled",
            "Share of the quota's periods in which the node had used its CPU up and had to wait.",
            "percentunit",
            {"{{node}}": throttled},
            min=0,
            max=1,
        ),
        series(
            "CPU throttled time",
            "Seconds per second that tasks waited for the quota, summed over the node's cores.",
            "s",
            {"{{node}}": _rate("syncbed_node_cpu_throttled_seconds_total")},
            min=0,
        ),
        series(
            "CPU by mode",
            "Cores in use in user code and in the kernel.",
            "none",
            {"{{node}} {{mode}}": _rate("syncbed_node_cpu_seconds_total", "node, mode")},
            min=0,
            decimals=2,
        ),
    ]


def _memory() -> list[dict]:
    return [
        series(
            "Memory",
            "Working set (usage minus inactive file cache) against the node's limit.",
            "bytes",
            {
                "{{node}}": "syncbed_node_memory_working_set_bytes" + _NODE,
                "{{node}} limit": "syncbed_node_memory_limit_bytes" + _NODE,
            },
            min=0,
        ),
        series(
            "Memory with page cache",
            "Raw usage, page cache included, and its highest value since the node started.",
            "bytes",
            {
                "{{node}}": "syncbed_node_memory_usage_bytes" + _NODE,
                "{{node}} peak": "syncbed_node_memory_peak_bytes" + _NODE,
            },
            min=0,
        ),
    ]


def _network() -> list[dict]:
    def panel(title: str, unit: str, metric: str, description: str) -> dict:
        return series(title, description, unit, {"{{node}}": _rate(f"syncbed_node_network_{metric}_total")}, min=0)

    return [
        panel("Network sent", "Bps", "transmit_bytes", "Bytes per second that leave the node, headers included."),
        panel("Network received", "Bps", "receive_bytes", "Bytes per second that reach the node, headers included."),
        panel("Packets sent", "pps", "transmit_packets", "Packets per second that leave the node."),
        panel("Packets received", "pps", "receive_packets", "Packets per second that reach the node."),
    ]


def _training() -> list[dict]:
    return [
        series(
            "Step",
            "Optimizer steps that each rank has taken in this run.",
            "none",
            {"{{node}} rank {{rank}}": f"max by (node, rank) (syncbed_training_step{_NODE})"},
            min=0,
            decimals=0,
        ),
        series(
            "Training loss",
            "Loss of each rank's share of the batch, before the update.",
            "none",
            {"{{node}} rank {{rank}}": f"max by (node, rank) (syncbed_training_loss{_NODE})"},
            decimals=3,
        ),
    ]
