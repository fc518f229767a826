"""Two small convolutional networks, whose steps are short enough for a wire to be felt at once.

The softmax at their end is part of the loss (cross-entropy of logits), as everywhere here.
"""

from torch import nn


def cnn3(classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> nn.Sequential:
    """Images (batch, 3, 32, 32) to logits: 6, then 16 filters of 5x5, a hidden layer of 64. 29,186 parameters.

    In the manner of LeNet-5 (LeCun et al., 1998): each convolution is followed by a ReLU and a 2x2
    max-pooling.
    """
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5),  # 28x28
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),  # 10x10
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, classes),
    )


def cnn5(classes: int = 10, shape: tuple[int, int, int] = (1, 28, 28)) -> nn.Sequential:
    """Images (batch, 1, 28, 28) to logits: 10, then 20 filters of 5x5, a hidden layer of 50. 9,840 parameters.

    Its order (convolution, pooling, ReLU, twice; dropout, pooling; two linear layers) is that of a
    report on parallel SGD which gives no widths; these are the usual ones of a first network for
    MNIST. Dropout draws from torch's generator, which the training loop seeds for each step.
    """
    return nn.Sequential(
        nn.Conv2d(shape[0], 10, 5),  # 24x24
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Conv2d(10, 20, 5),  # 8x8
        nn.MaxPool2d(2),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20 * 2 * 2, 50),
        nn.ReLU(inplace=True),
        nn.Linear(50, classes),
    )
