"""`syncbed data`: fetch, check and prepare a data set."""

import json
import re
import sys
from functools import partial
from pathlib import Path

from monitor.data.catalogue import CACHE, folder, prepare
from trainer.registry import DATA
from trainer.spec import RunSpec, SpecError, shape_text, unknown

SETTINGS = {
    "DATA": "which data set: " + ", ".join(DATA),
    "DATA_DIR": "a folder that holds it in its public layout, in place of a download",
    "DATA_CACHE": "folder of prepared data sets; default: data",
    "MODEL": "the model it is for, which decides the shape of synthetic images",
    "SEED": "seed of synthetic images",
}


def command(settings: dict[str, str], args) -> int:
    """`syncbed data DATA=cifar10 DATA_DIR=folder`: prepare, compare checksums, say what there is.

    MODEL decides which data set, and in what shape synthetic images are, as it does in a run.
    """
    for name, value in settings.items():
        if name not in SETTINGS:
            raise SpecError(name, value, unknown(name, SETTINGS))
    name, seed = settings.get("DATA", RunSpec.data), settings.get("SEED", "42")
    if name not in DATA:
        raise SpecError("DATA", name, "one of: " + ", ".join(DATA))
    if not (re.fullmatch("[0-9]{1,10}", seed) and int(seed) < 2**31):
        raise SpecError("SEED", seed, f"a whole number from 0 to {2**31 - 1}")
    shape = None
    if "MODEL" in settings:
        spec = RunSpec.from_settings({word: settings[word] for word in ("DATA", "MODEL") if word in settings})
        name, shape = spec.data, spec.shape
    prepared = prepare(
        name,
        seed=int(seed),
        shape=shape,
        data_dir=folder(settings),
        cache=Path(settings.get("DATA_CACHE", CACHE)),
        say=partial(print, file=sys.stderr if args.json else sys.stdout),
        verify=True,
        or_synthetic="DATA" not in settings,
    )
    manifest = prepared.manifest
    if args.json:
        print(json.dumps({"path": str(prepared.path), "key": prepared.key, "verified": True} | manifest))
        return 0
    samples = f"{manifest['train_samples']} training and {manifest['test_samples']} test images"
    print(f"{prepared.label}: {prepared.path}")
    print(f"{samples} of {shape_text(manifest['shape'])}, {len(manifest['classes'])} classes")
    print("SHA-256 of every file as in its manifest.json")
    return 0
