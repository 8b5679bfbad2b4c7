"""What people and programs read of a build, made from the engine's events."""
