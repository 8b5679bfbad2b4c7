"""A project, opened: its manifest, settings, tools, plan and cache, and a whole build of it."""
