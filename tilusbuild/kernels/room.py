"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {"package format": {"kernels": "tilusbuild.kernels.variants:FORMAT"}}
