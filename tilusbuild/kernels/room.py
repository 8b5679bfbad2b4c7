"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

NEEDS = ("embed",)
BRINGS = {"package format": {"kernels": "tilusbuild.kernels.variants:FORMAT"}}
