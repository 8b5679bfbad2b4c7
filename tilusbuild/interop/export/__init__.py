"""Export scripts of the cache in the directory layout of Tilus, TileLang or Hidet, as hard links.

A layout is a pure function from what was built to the names that its system documents; one writer
puts any of them on disk. Nothing in the cache is changed.
"""
