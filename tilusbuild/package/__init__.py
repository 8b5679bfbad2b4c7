"""Packages: caches for distribution, described by one file list in every format.

A package is made from a built cache and records neither who packed it nor when. Whatever is read
from a package is untrusted input.
"""
