"""The engine: what is out of date, in which order it is compiled, and what came of it."""
