"""What a node says of itself, from inside."""

import json

from monitor.engine.naming import DEFAULT_PROJECT, PROJECT_LABEL, words
from monitor.engine.sdk import guard, one_line
from monitor.errors import RunFailed


def node_facts(container) -> dict:
    """What `node.launcher check` says inside a node: limits, addresses, code, the run that holds it, what it ended.

    Raises RunFailed when the node cannot say it.
    """
    with guard():
        for _ in range(5):  # Docker 20.10 has been seen to lose all output of a command that went well
            code, (out, err) = container.exec_run(["python", "-m", "node.launcher", "check"], demux=True)
            if out or code:
                break
    try:
        return json.loads(out or b"")
    except ValueError:
        reason = one_line((err or out or b"").decode(errors="replace"))
        mends = f"make cluster-up{words(container.labels.get(PROJECT_LABEL, DEFAULT_PROJECT))} mends it"
        raise RunFailed(f"{container.name} does not answer: {reason} (exit code {code}); {mends}") from None
