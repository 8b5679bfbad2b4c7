"""The plan: which programs a project consists of, each by its hash."""
