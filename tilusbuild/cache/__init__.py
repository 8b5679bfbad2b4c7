"""The cache tree: layout, publication, verification, garbage."""
