"""Processes: every one that tilusbuild starts, it starts here."""
