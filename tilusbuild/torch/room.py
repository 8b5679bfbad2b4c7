"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {"module for kernels": {"_ops": "tilusbuild.torch.ops"}}
