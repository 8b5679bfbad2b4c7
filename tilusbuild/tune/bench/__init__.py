"""Measuring programs with the standard library alone, so that machines without the builder can.

Nothing here imports the builder beyond `errors`, `process` and `runtime.device`, which are as
light; a test holds that. NumPy is used for comparisons where it is installed.
"""
