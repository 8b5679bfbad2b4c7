"""An optional room: packages as OCI image layouts, for registries."""
