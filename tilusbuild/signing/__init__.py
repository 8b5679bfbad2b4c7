"""An optional room: attestations of packages, made with a key or through Sigstore, and checked."""
