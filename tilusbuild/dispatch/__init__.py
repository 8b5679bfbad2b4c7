"""Dispatch for the builder: scripts described for calls, tables, coverage, the C dispatcher."""
