"""From a recipe to a `lib.so`: the pipelines, the launcher, `compile.sh`, `options.txt`.

What compiles is `program.py`, which is imported only where there is something to compile.
"""
