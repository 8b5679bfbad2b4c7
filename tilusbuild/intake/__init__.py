"""What becomes a manifest: folders, records of other builds, tuning scripts."""
