"""The outputs that the kernels must compute, in NumPy."""

import numpy as np


def paged_decode(q, k, v, pages, lengths, scale):
    o = np.empty_like(q)
    group = q.shape[1] // k.shape[2]
    for i, length in enumerate(lengths):
        # (length, kv_heads, head_dim) -> (heads, length, head_dim)
        keys, values = (
            np.repeat(pool[pages[i]].reshape(-1, *pool.shape[2:])[:length], group, axis=1)
            for pool in (k, v)
        )
        scores = np.einsum("hd,lhd->hl", q[i], keys) * scale
        weights = np.exp(scores - scores.max(1, keepdims=True))
        o[i] = np.einsum("hl,lhd->hd", weights / weights.sum(1, keepdims=True), values)
    return o


def linear(x, w, locks):
    return x @ w, locks
