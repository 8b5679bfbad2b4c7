"""The kernel languages whose functions a script names instead of a generator: one file each."""
