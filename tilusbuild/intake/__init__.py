"""An optional room: manifests of other builds and of tuning scripts."""
