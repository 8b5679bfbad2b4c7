"""A project of two scripts in every carrier, and a small list by hand."""

from support.packed import _built, listed, packed, project

__all__ = ["_built", "listed", "packed", "project"]
