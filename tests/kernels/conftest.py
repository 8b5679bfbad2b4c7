"""A project of two scripts, built, and a small list by hand."""

from support.packed import _built, listed, project

__all__ = ["_built", "listed", "project"]
