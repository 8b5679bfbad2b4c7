"""Users of one remote cache."""

from __future__ import annotations

from support.remote_fixtures import ask, farm, held, new_user, origin, server  # noqa: F401
