"""What this optional room brings; see `tilusbuild/rooms.py`."""

BRINGS = {"package format": {"oci": "tilusbuild.oci.layout:FORMAT"}}
