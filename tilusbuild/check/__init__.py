"""Check a package with tests on this machine, and measure its programs."""
