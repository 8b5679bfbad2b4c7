"""Foreign caches, those of Tilus, TileLang, Hidet and Triton: read, verify and clean them up.

A cache is recognised by what it holds, never by its name. Only `gc` changes anything.
Pickles are named and never opened; libraries are read as bytes and never loaded.
"""
