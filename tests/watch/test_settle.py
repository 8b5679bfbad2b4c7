"""The debounce, with a clock of numbers."""

from tilusbuild.watch.change_detector import Debounce


def test_it_is_due_when_it_was_quiet() -> None:
    debounce = Debounce(quiet=0.1, max_delay=1.0)
    assert debounce.due is None
    assert debounce.take(5.0) is None
    debounce.touch(5.0)
    debounce.touch(5.05)
    assert debounce.take(5.1) is None
    assert debounce.take(5.2) == 5.0, "and says when it began"
    assert debounce.due is None


def test_what_never_is_quiet_is_due_all_the_same() -> None:
    debounce = Debounce(quiet=0.1, max_delay=1.0)
    taken = []
    for step in range(40):
        now = step * 0.05
        debounce.touch(now)
        if debounce.take(now) is not None:
            taken.append(now)
    assert len(taken) == 1
    assert taken[0] == 1.0


def test_after_it_was_taken_it_starts_again() -> None:
    debounce = Debounce(quiet=0.1, max_delay=1.0)
    debounce.touch(1.0)
    assert debounce.take(2.0) == 1.0
    debounce.touch(3.0)
    assert debounce.take(3.05) is None
    assert debounce.take(3.11) == 3.0
