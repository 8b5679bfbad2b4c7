"""The contributions of this optional room; see `tilusbuild/rooms.py`."""

NEEDS = ("tune",)
BRINGS = {"benches": {"ray": "tilusbuild.ray.benches:RayBenches"}}
