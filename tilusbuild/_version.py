"""The version of this distribution: hatchling, every format and every message read it here."""

__version__ = "0.1.0"
