"""`unshare -n python loopback_bytes.py DATA STEPS`: trains 3 ranks in this network namespace, prints lo's bytes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

from loopback_wire import bring_up, transmitted
from ranks import Ranks

from trainer.spec import RunSpec

bring_up()
with Ranks(RunSpec(nodes=3, batch=6, steps=int(sys.argv[2])), Path(sys.argv[1])) as ranks:
    ranks.finish()
print(transmitted())
