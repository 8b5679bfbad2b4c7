"""The commands that faults are tried on: every verb that changes a tree."""

import os
import signal
import time
from contextlib import suppress

from support.faults.commands import Ended, is_over
from support.faults.oracle import Scenario
from support.faults.world import FORMATS, HOST, MORE, WRITTEN, World

_WATCHED_SECONDS = 10.0
_TUNE = ("tune", "scale", "--target", "cpu", "--cache", "warm", "--repeat", "2")


def scenarios(world: World) -> dict[str, Scenario]:
    """All of them, by name."""
    scenario_list = [
        Scenario("cold", ("build", "-j1"), base="seeded"),
        Scenario("edit", ("build", "-j1"), edition=MORE),
        Scenario("same", ("build", "-j1")),
        Scenario("bare", ("build", "-j1"), base="bare"),
        Scenario("merge", ("cache", "merge", str(world.library / ".cache")), edition=MORE),
        Scenario("gc", ("cache", "gc"), base="garbage", removes=True),
        Scenario("clear", ("cache", "clear"), removes=True),
        Scenario("verify", ("cache", "verify")),
        Scenario("watch", ("watch", "--json"), edition=MORE, again=False),
        Scenario("host", ("build", "-j1"), base="host", edition=HOST),
        Scenario("tune", _TUNE, base="on-host", edition=HOST, measures=True),
        Scenario("remove", ("install", "--remove", "p"), removes=True, again=False),
    ]
    scenario_list += [Scenario(f"package-{kind}", world.package_words(kind)) for kind in WRITTEN]
    for kind in FORMATS:
        words = ("install", str(world.package(kind)))
        scenario_list.append(Scenario(f"install-{kind}", words, base="seeded", edition=MORE))
    return {scenario.name: scenario for scenario in scenario_list}


def run(world: World, scenario: Scenario, *, join: bool = True) -> Ended:
    """Run a scenario's command where the page's faults reach it; `watch` until it has built."""
    if scenario.words[0] != "watch":
        return world.run(*scenario.words, join=join)
    environment = world.environment(join=join)
    running = world.server.start(scenario.words, world.project, environment, join=join)
    deadline = time.monotonic() + _WATCHED_SECONDS
    # Of what is watched no line is printed but where there is a terminal: hence --json.
    while time.monotonic() < deadline and '"watching"' not in running.out.read_text("latin-1"):
        if is_over(running):
            break
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGINT)
    return world.server.wait(running)
