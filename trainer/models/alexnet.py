"""AlexNet for 32x32 images: the single-tower layers of Krizhevsky, arXiv:1404.5997, of which 95 % are linear.

All layers have the sizes that the network has for 224x224 images, so the parameters are the same
57,044,810 at 10 classes: 228 MB of gradients to synchronise. Only the way down to the last feature
maps, 256 x 6 x 6, is shorter, since there is less to come down from: the 11x11 stem takes steps of
1 pixel, not 4, and the last of the three poolings is left out. That is 202 million multiply-adds an
image, where the original has 710 million.

Dropout, 0.5 before each of the two hidden linear layers, draws from torch's generator, which the
training loop seeds for each step.
"""

from torch import nn


class AlexNet(nn.Module):
    """Images (batch, channels, 32, 32) to logits (batch, classes)."""

    def __init__(self, classes: int, channels: int):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 11, padding=3),  # 28x28
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),  # 13x13
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),  # 6x6
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def alexnet(classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> AlexNet:
    """57,044,810 parameters at 10 classes."""
    return AlexNet(classes, shape[0])
