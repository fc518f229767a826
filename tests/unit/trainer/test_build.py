"""A run refuses data in another shape than its model takes."""

import numpy as np
import pytest

from trainer.data.prepared import InputError, Prepared, Split
from trainer.run.loop import Run
from trainer.spec import RunSpec
from trainer.wire.alone import AloneWire


def test_prepared_images_of_another_shape():
    split = Split(np.zeros((4, 3, 32, 32), np.uint8), np.zeros(4, np.int64))
    data = Prepared("cifar10", (3, 32, 32), tuple("abcdefghij"), (0.5,) * 3, (1.0,) * 3, False, split, split)
    with pytest.raises(InputError) as raised:
        Run(RunSpec(sync="single", nodes=1, model="cnn5", data="mnist", batch=2), data, AloneWire(), lambda _: None)
    assert str(raised.value) == "cifar10: its images are 3x32x32, the run is of 1x28x28; prepare DATA=mnist"
