"""Views: a cache tree as Tilus, TileLang or Hidet lay out theirs, made of hard links.

A layout is a pure function from what was built to the names that its system documents; one writer
puts any of them on disk. Nothing in the cache is changed.
"""
