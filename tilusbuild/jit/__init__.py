"""An optional room: kernels inside a program, from memory, disk or the compiler.

It is the way of `tilusbuild build` for one schedule at a time: the same plan, names, tree, errors.
"""
