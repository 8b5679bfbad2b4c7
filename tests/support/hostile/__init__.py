"""Inputs that mean harm, or are merely odd: a generator a class, one oracle for all.

`python -m support.hostile` runs them for as long as asked (`make hostile`).
"""
