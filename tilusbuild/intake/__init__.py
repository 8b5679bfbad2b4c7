"""What becomes a manifest: records of other builds, tuning scripts."""
