"""The verbs `doctor` and `preflight`: what this machine has, and what another one needs."""
