"""Building on every change: what to watch, when to look, what to plan again, what to build."""
