"""The report as a page to look at."""
