"""What runs in a node, or in its network namespace, beside the ranks: launcher, agent, link shaping, probes.

It ships in the node image with trainer/ and serving/. It never imports docker or monitor.
"""
