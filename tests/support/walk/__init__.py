"""A random walk over edits and commands of one project, compared with clean builds."""
