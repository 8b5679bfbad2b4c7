"""The Python package of docs/wheels-with-kernels.md."""

from support.python_package import python_project

__all__ = ["python_project"]
