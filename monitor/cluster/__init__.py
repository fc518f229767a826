"""The cluster of containers: started, changed, shown and removed by command."""
