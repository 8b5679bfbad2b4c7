"""What the kernel must compute, in NumPy."""

import numpy as np


def linear(x, w, bias, y):
    return np.maximum(x.astype(np.float32) @ w.astype(np.float32).T + bias.astype(np.float32), 0)
