"""Packages: a cache for distribution. One file list says what is in it, in whatever format.

A package is made from a cache that was built, holds nothing of who packed it or when, and is read
as what it is: bytes from somebody else.
"""
