"""Kernels inside another system's build: of a Python package, or of a CMake project."""
