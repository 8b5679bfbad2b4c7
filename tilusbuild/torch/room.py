"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {"module for kernels": {"_ops": "tilusbuild.torch.ops"}}
