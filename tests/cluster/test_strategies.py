"""Every strategy of the registry on real containers: it trains, and the interface carried what the wire counted."""

import pytest
from orchestrator import Orchestrator

from trainer.registry import SYNCS

HEADERS = 1.05  # TCP/IP and Ethernet headers, acknowledgements, heartbeats
QUIET_BYTES = 2e6  # heartbeats and rendezvous of a run that sends nothing else
WORDS = {"hogwild": {"NPROC": 2}, "local_sgd": {"H": 2}, "diloco": {"H": 2}}


@pytest.mark.parametrize("sync", SYNCS)
def test_the_interface_carries_what_the_wire_counts(cluster, tmp_path, sync):
    run = Orchestrator(
        tmp_path, RUNTIME="docker", PROJECT=cluster.project, SYNC=sync, BATCH=24, STEPS=4, **WORDS.get(sync, {})
    )
    code, out = run.finish()
    assert code == 0, out
    result = run.result()
    assert result["test_samples_counted"] == 13
    for node in {rank["node"] for rank in result["ranks"]}:
        ranks = [rank for rank in result["ranks"] if rank["node"] == node]
        for way in ("sent", "received"):
            payload = sum(rank[f"{way}_bytes"] for rank in ranks)
            counted = ranks[0][f"interface_{way}_bytes"]
            assert counted is not None
            assert payload <= counted <= HEADERS * payload + QUIET_BYTES, (node, way)
