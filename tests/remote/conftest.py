"""Users of one remote cache."""

from support.remote_fixtures import ask, farm, held, keys, new_user, origin, server  # noqa: F401
