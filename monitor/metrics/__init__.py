"""Figures of nodes over time: sampled from agents, or read back from Prometheus."""
