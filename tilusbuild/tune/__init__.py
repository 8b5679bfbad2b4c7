"""Trying programs: generated inputs, the reference's answer, the comparison, the clock."""
