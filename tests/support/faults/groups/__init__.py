"""The ways to fail, one file each: a generator of faults by name, and what runs one."""
