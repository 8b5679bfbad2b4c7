"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

BRINGS = {"package format": {"oci": "tilusbuild.oci.layout:FORMAT"}}
