"""Perceptual and structural losses of pictures, each behind a small network."""

from tests.third_party.row import Float, New, Row, Uniform

NETWORK = New("torch.nn:Sequential", New("torch.nn:Conv2d", 3, 3, 3, padding=1), New("torch.nn:Sigmoid"))
PAIR = [Uniform(2, 3, 64, 64), Uniform(2, 3, 64, 64)]


def compared(package: str, path: str, pair: list | None = None, **options: object) -> Row:
    """A loss between the network's picture and another."""
    return Row(
        package,
        "tests.third_party.wrapped:Compared",
        (NETWORK, New(path, **options)),
        {},
        pair or PAIR,
        title=path.partition(":")[2],
    )


ROWS = (
    compared("pytorch-msssim", "pytorch_msssim:SSIM", data_range=1.0, channel=3),
    compared(
        "pytorch-msssim",
        "pytorch_msssim:MS_SSIM",
        [Uniform(1, 3, 176, 176), Uniform(1, 3, 176, 176)],
        data_range=1.0,
        channel=3,
    ),
    compared("piq", "piq:SSIMLoss"),
    compared("piq", "piq:VIFLoss"),
    compared("piq", "piq:GMSDLoss"),
    compared("piq", "piq:MultiScaleGMSDLoss"),
    compared("piq", "piq:HaarPSILoss"),
    compared("piq", "piq:TVLoss", [Uniform(2, 3, 16, 16)]),
    compared("piq", "piq:MDSILoss"),
    compared("piq", "piq:VSILoss"),
    compared("piq", "piq:SRSIMLoss"),
    compared("piq", "piq:FSIMLoss"),
    compared("lpips", "lpips:LPIPS", net="alex", pnet_rand=True, pretrained=False, verbose=False),
    compared("kornia", "kornia.losses:SSIMLoss", window_size=5),
    compared("kornia", "kornia.losses:PSNRLoss", max_val=1.0),
    compared("kornia", "kornia.losses:TotalVariation", [Uniform(2, 3, 16, 16)]),
    compared("kornia", "kornia.losses:CharbonnierLoss"),
    compared(
        "kornia", "kornia.filters:GaussianBlur2d", [Float(2, 3, 16, 16)], kernel_size=(3, 3), sigma=(1.0, 1.0)
    ),
    compared("kornia", "kornia.color:RgbToLab", [Float(2, 3, 16, 16)]),
    compared("kornia", "kornia.color:RgbToHsv", [Float(2, 3, 16, 16)]),
)
