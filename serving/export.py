"""Make an artefact of a checkpoint's model.pt.

The orchestrator runs it where torch is: here, or in a container.

    python -m serving.export MODEL.PT FOLDER <facts.json     # FOLDER must exist

Standard input is one JSON object, what a checkpoint does not know: {"run", "metrics", "syncbed"}.
Exit codes: 0, or 2 with one line on stderr.
"""

import json
import sys
from pathlib import Path

from serving.artefact import About, ArtefactError, write
from trainer.checkpoint.files import read


def export(model: Path, folder: Path, facts: dict) -> About:
    """Write the artefact. Raises ArtefactError and OSError."""
    try:
        content = read(model)
        if "inputs" not in content:
            raise ArtefactError(
                "this checkpoint was written by a syncbed that could not export; train again, or RESUME it"
            )
        spec, step, inputs = content["spec"], content["step"], content["inputs"]
        about = About(model=spec["model"], spec=spec, step=step, **inputs, **facts)
        write(folder, content["model"], about)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # a checkpoint may say anything
        raise ArtefactError(f"this checkpoint cannot be exported ({error}); train again") from None
    return about


def main(arguments: list[str]) -> int:
    model, folder = map(Path, arguments)
    try:
        export(model, folder, json.load(sys.stdin))
    except (ArtefactError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
