"""Serves trained models over HTTP: TorchServe's interface and the Open Inference Protocol, with dynamic batching.

One process, three ports: predictions (8080), management (8081), metrics (8082). Never imports
docker or monitor.
"""
