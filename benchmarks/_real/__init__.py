"""Real projects beside their own builds: fetched, ported, built both ways and compared."""
