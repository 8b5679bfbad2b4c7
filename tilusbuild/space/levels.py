"""In which order parameters are joined, and what is done when each of them is: which derived values
are computed, which rules applied, and which columns are kept for later ones."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from tilusbuild.space.model import Derived, Model, Rule


class JoinLevel(Struct):
    """What happens when one parameter joins."""

    position: int
    derived: list[Derived] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    partial: list[Rule] = field(default_factory=list)
    """Rules that need more, but may show already that a partial point leads nowhere."""
    keep: set[str] = field(default_factory=set)
    ahead: int = 1
    """With how many combinations each point of this level will yet be crossed, at most."""


def row_name(position: int) -> str:
    """Return the name of the column of a parameter's row numbers."""
    return f"#{position}"


def levels_of(model: Model, order: Sequence[int], rules: Sequence[Rule]) -> list[JoinLevel]:
    """Return when each rule applies, when each derived value is computed, and what is kept until
    when."""
    levels = [JoinLevel(position) for position in order]
    depth_of = {level.position: depth for depth, level in enumerate(levels)}
    used_until: dict[str, int] = {}

    def use(names: frozenset[str], depth: int) -> None:
        for name in names:
            used_until[name] = max(depth, used_until.get(name, 0))

    for rule in rules:
        depth = max(depth_of[position] for position in rule.needs)
        levels[depth].rules.append(rule)
        for earlier in sorted(depth_of[position] for position in rule.needs)[:-1]:
            levels[earlier].partial.append(rule)
        use(rule.expr.names, depth)
        if rule.pins is not None:
            use(frozenset((row_name(rule.pins),)), depth)
    for derived in reversed(model.derived):
        if derived.name in used_until:
            depth = max(depth_of[position] for position in derived.needs)
            levels[depth].derived.insert(0, derived)
            use(derived.expr.names, depth)
    made = {derived.name: depth for depth, level in enumerate(levels) for derived in level.derived}
    for position, depth in depth_of.items():
        made |= dict.fromkeys((*model.domains[position].names, row_name(position)), depth)
    for later, level in zip(levels[:0:-1], levels[-2::-1], strict=True):
        level.ahead = later.ahead * len(model.domains[later.position].rows)
    for depth, level in enumerate(levels):
        level.keep = {n for n, until in used_until.items() if made[n] <= depth < until}
    return levels


def greedy_order(model: Model, members: Sequence[int], rules: Sequence[Rule]) -> list[int]:
    """First what completes the most rules, then what comes nearest to one, then what is small."""
    left, done, order = list(members), set[int](), list[int]()
    while left:

        def worth(position: int) -> tuple[float, float, int, int]:
            after = done | {position}
            touching = [rule.needs for rule in rules if position in rule.needs]
            complete = sum(needs <= after for needs in touching)
            nearest = max(
                (len(needs & after) / len(needs) for needs in touching if not needs <= after),
                default=0.0,
            )
            return complete, nearest, -len(model.domains[position].rows), -position

        best = max(left, key=worth)
        order.append(best)
        done.add(best)
        left.remove(best)
    return order
