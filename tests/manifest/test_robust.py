"""Manifests spoilt at random: each loads, or says in located errors what is wrong with it."""

import random
from collections.abc import Callable

import pytest

from support.spoilt import spoilt
from tilusbuild.errors import InputError
from tilusbuild.manifest.model import Manifest


def see_everything(manifest: Manifest) -> None:
    """What a checked manifest promises not to fail."""
    for name, script in manifest.scripts.items():
        for target in manifest.targets_of(name):
            views = (script.params_for, script.space_for, script.derived_for, script.restrict_for)
            for view in (*views, script.launch_for, script.default_for):
                view(target)
            manifest.flags_for(name, target)
            manifest.defines_for(name, target)


@pytest.mark.parametrize("seed", range(30))
def test_loads_or_says_where(seed: int, load_example: Callable[[str], Manifest]) -> None:
    try:
        see_everything(load_example(spoilt(random.Random(seed))))
    except InputError as error:
        places = [diagnostic.place for diagnostic in error.diagnostics]
        assert places
        assert all(place is not None and place.path == "tilus.toml" for place in places)
