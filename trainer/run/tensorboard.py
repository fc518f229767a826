"""TENSORBOARD=1: what a rank says of its steps, and the model's graph, as event files for TensorBoard.

SYNCBED_OUT/tensorboard/rank-<r>/events.out.tfevents.*      `make tensorboard` shows them
"""

import warnings
from pathlib import Path

import torch

from trainer.data.prepared import InputError
from trainer.events import Step
from trainer.names import in_folder

FOLDER = "tensorboard"
FLUSH_SECONDS = 10  # what a killed rank may lose


class NoBoard:
    """TENSORBOARD=0."""

    def graph(self, model, image_shape: tuple[int, int, int]) -> None:
        """Nothing to do."""

    def step(self, event: Step) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class Board:
    """Writes one rank's folder, from step `first` on: what stands there of later ones, a restart has lost. Raises
    InputError when the package is not installed. The package is imported here, and only here: that takes a second.
    """

    def __init__(self, out: Path, rank: int, first: int = 1):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            text = f"TENSORBOARD=1: {error}; `make run TENSORBOARD=1` installs it, TENSORBOARD=0 does without"
            raise InputError(text) from None
        self._writer = SummaryWriter(
            str(in_folder(out / FOLDER, f"rank-{rank}")), purge_step=first, flush_secs=FLUSH_SECONDS
        )

    def graph(self, model, image_shape: tuple[int, int, int]) -> None:
        """The graph of the model in evaluation, for images of (channels, height, width).

        Nothing of it is changed.
        """
        images, training = torch.zeros(1, *image_shape), model.training
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # tracing is deprecated; TensorBoard's graphs are made of nothing else yet
            # Traced here, without the check that add_graph would make: it imports 500 modules.
            traced = torch.jit.trace(model.eval(), images, check_trace=False)
            self._writer.add_graph(traced, images)
        model.train(training)

    def step(self, event: Step) -> None:
        """The step's figures; seconds by phase."""
        figures = {name: getattr(event, name) for name in ("loss", "accuracy", "sent_bytes", "received_bytes")}
        figures["step_seconds"] = event.step_seconds
        figures |= {f"seconds/{phase}": seconds for phase, seconds in event.seconds.items()}
        for name, value in figures.items():
            self._writer.add_scalar(name, value, event.step, walltime=event.time)

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()
