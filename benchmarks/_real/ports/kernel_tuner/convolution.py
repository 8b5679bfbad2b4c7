"""Tunes the convolution of Kernel Tuner's source package, as a user of it would."""

from collections import OrderedDict

import numpy
from kernel_tuner import tune_kernel

FILTER = 17


def space():
    params = OrderedDict()
    params["filter_height"] = [FILTER]
    params["filter_width"] = [FILTER]
    params["block_size_x"] = [16 * i for i in range(1, 9)]
    params["block_size_y"] = [2**i for i in range(6)]
    params["tile_size_x"] = [1, 2, 4]
    params["tile_size_y"] = [1, 2, 4]
    params["use_padding"] = [0, 1]
    params["read_only"] = [0, 1]
    return params


def tune(source):
    size = (4096, 4096)
    image = numpy.zeros(1, numpy.float32)
    restrict = [
        "use_padding == 0 or block_size_x % 32 != 0",
        lambda p: p["block_size_x"] * p["block_size_y"] >= 64,
        "(block_size_x * tile_size_x + 16) * (block_size_y * tile_size_y + 16) < 12 * 1024",
    ]
    return tune_kernel(
        "convolution_kernel",
        source,
        size,
        [image, image, image],
        space(),
        grid_div_x=["block_size_x", "tile_size_x"],
        grid_div_y=lambda p: p["block_size_y"] * p["tile_size_y"],
        restrictions=restrict,
    )


if __name__ == "__main__":
    with open("convolution.cu") as file:
        tune(file.read())
