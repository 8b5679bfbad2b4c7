"""Packages: a cache carried away. One file list says what is in it, several carriers transport it.

A package is made from a cache that was built, holds nothing of who packed it or when, and is read
as what it is: bytes from somebody else.
"""
