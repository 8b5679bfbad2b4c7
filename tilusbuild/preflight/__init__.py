"""The verb `diff`: what changed between two packages or caches."""
