"""Grafana's dashboards as code, and what is asked of a cluster's Prometheus for them.

python -m monitor.dashboards     # writes grafana/dashboards/*.json, which are committed
"""
