"""Caches of other systems: what is in them, what is broken, what may go.

A cache is recognised by what it holds, never by its name. Only `gc` changes anything.
Pickles are named and never opened; libraries are read as bytes and never loaded.
"""
