"""`tune --ray`: the devices of a cluster, here three nodes of one core on this machine."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tune.test_compare import KERNEL, MANIFEST, REFERENCE

from support.processes import wait_until
from support.project import Project

pytest.importorskip("ray", reason="needs ray, of tilusbuild[ray]")

SIZES = (1000, 2000, 3000, 6000, 9000, 20_000)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of three nodes, each with one core."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray_cluster = Cluster()
    for _ in range(3):
        ray_cluster.add_node(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False)
    yield ray_cluster
    ray_cluster.shutdown()


def list_questions(project: Any) -> list[tuple[Any, ...]]:
    """The questions that the log of a project answers, so far."""
    if not project.log_exists():
        return []
    rows = [json.loads(line) for line in project.log.read_text().splitlines()]
    return [(r["case"], r["program"], r["what"], r["number"]) for r in rows if "program" in r]


@pytest.mark.slow
def test_a_node_is_killed_and_the_choices_are_those_of_one_device(
    tune_project: Callable[..., Any], cluster: Any
) -> None:
    project = tune_project("slow", "fast", "crash", sizes=SIZES)
    words = ("tune", "scale", "--cache", "warm")
    project.run(*words)
    alone = [(key, program) for key, program, *_ in project.table["entries"]]
    answers = len(list_questions(project))
    project.log.unlink()

    process = project.start(*words, "--ray", cluster.address)
    wait_until(lambda: len(list_questions(project)) >= answers // 3)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    out, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    assert "6 sizes, 3 devices" in err
    lost = "a device is left out: its process has ended, or its node does not answer"
    assert err.count(lost) == 1
    assert [(key, program) for key, program, *_ in project.table["entries"]] == alone
    questions = list_questions(project)
    assert len({*questions}) == len(questions), "nothing is measured twice"
    assert out.startswith("scale cpu on "), "Ray prints nothing there"
    assert "raylet" not in out


def test_an_address_without_a_cluster_is_the_user_s_mistake(
    tune_project: Callable[..., Any],
) -> None:
    project = tune_project("fast")
    err = project.run("tune", "scale", "--ray", "127.0.0.1:1", status=2).err
    assert "--ray 127.0.0.1:1: " in err
    project.run("tune", "scale", "--ray", "auto", "--device", "0", status=2)


@pytest.mark.slow
def test_outputs_are_compared_by_a_function_of_the_project(tmp_path: Path, cluster: Any) -> None:
    # Given a function of a module that imports another one beside it,
    sameness = "def is_same(x, y):\n    return sorted(x) == sorted(y)\n"
    same = '    return is_same(outputs["where"], expected["where"])\n'
    files = {
        "tilus.toml": MANIFEST.replace("ref.py", "py/ref.py"),
        "positive.cu.j2": KERNEL,
        "py/sameness.py": sameness,
        "py/ref.py": "from sameness import is_same\n" + REFERENCE + same,
    }
    project = Project(tmp_path / "project", {"RAY_USAGE_STATS_ENABLED": "0"}).write_all(files)
    # when the nodes of a cluster, which do not have them, measure,
    ran = project.run("tune", "positive", "--cache", "warm", "--ray", cluster.address)
    # then it decides.
    assert "program 2 (order=twice): incorrect: same returned false\n" in ran.out
    assert "not chosen for any size until rebuilt: 2\n" in ran.out
