"""The built project of the runtime's tests, for what the builder does with it."""

from support.marks import built, copied

__all__ = ["built", "copied"]
