"""Where the lines that are added to a source lead in a compiler's log."""

from tilusbuild.errors import Location
from tilusbuild.plan.readable import map_log
from tilusbuild.render.linemap import LineMap, Origin, Piece


def test_an_added_line_leads_to_its_place_if_it_has_one() -> None:
    own = (Piece(1, "int a;", Origin("k.cu.j2", 7), literal=True),)
    line_map = LineMap(("int a;",), (own,), lambda _: "\n" * 6 + "int a;")
    asserts = "static_assert(sizeof(P) == 8);"
    source = f"int a;\n{asserts}\n// no place"
    locations = {asserts: Location("tilus.toml", 3, 1, "p"), "": Location("tilus.toml", 5, 1, "k")}
    log = "".join(f"source.cu({line}): error: wrong\n" for line in (1, 2, 3))
    mapped = map_log(log, line_map, source, locations, "k").splitlines()
    starts = [line.partition(":")[0] for line in mapped if "error" in line]
    assert starts == ["k.cu.j2(7)", "tilus.toml(3)", "source.cu(3)"]
