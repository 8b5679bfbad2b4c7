"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {"package format": {"kernels": "tilusbuild.kernels.variants:FORMAT"}}
