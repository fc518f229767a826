"""VGG with batch norm for 32x32 images: Simonyan & Zisserman, arXiv:1409.1556, with one linear layer as classifier.

Five poolings leave 512 x 1 x 1 of a 32x32 image, so that one Linear(512, classes) takes the place
of the paper's three. Weights are drawn as torch's layers draw them by default.
"""

from torch import nn

# Widths of the 3x3 convolutions between poolings: configurations A, B, D and E of the paper's table 1.
VGG11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG13 = ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512))
VGG16 = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
VGG19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)


class Vgg(nn.Module):
    """Images (batch, channels, 32, 32) to logits (batch, classes)."""

    def __init__(self, stages: tuple[tuple[int, ...], ...], classes: int, channels: int):
        super().__init__()
        layers = []
        for stage in stages:
            for width in stage:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images):
        return self.classifier(self.features(images).flatten(1))


def vgg11(classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> Vgg:
    """9,231,114 parameters at 10 classes."""
    return Vgg(VGG11, classes, shape[0])


def vgg13(classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> Vgg:
    """9,416,010 parameters at 10 classes."""
    return Vgg(VGG13, classes, shape[0])


def vgg16(classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> Vgg:
    """14,728,266 parameters at 10 classes."""
    return Vgg(VGG16, classes, shape[0])


def vgg19(classes: int = 10, shape: tuple[int, int, int] = (3, 32, 32)) -> Vgg:
    """20,040,522 parameters at 10 classes."""
    return Vgg(VGG19, classes, shape[0])
