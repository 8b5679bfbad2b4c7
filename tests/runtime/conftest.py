"""The built project."""

from support.marks import built, copied

__all__ = ["built", "copied"]
