"""Tune on the devices of a Ray cluster."""
