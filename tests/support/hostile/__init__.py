"""Inputs that mean harm, or are merely odd: a generator a class, one oracle for all.

Each class is a group of the laboratory of faults (`make hostile`).
"""
