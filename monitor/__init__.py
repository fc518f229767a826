"""What runs beside the nodes: launches, watches, scrapes, reports. Never imports torch."""
