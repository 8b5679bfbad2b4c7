"""The pure parts: geometry, the launcher's text, steps, logs, the store of launchers."""

import subprocess
import threading

import pytest

from support.recipes import make_recipe, make_toolchain
from tilusbuild.binary.elf import Elf
from tilusbuild.compile.causes import scrub_output
from tilusbuild.compile.geometry import build_geometry, format_program_source
from tilusbuild.compile.launcher import format_launcher
from tilusbuild.compile.steps import LAUNCHER_STEP, collect_tools
from tilusbuild.state.envelope import StepStore


class TestGeometry:
    def test_what_the_schedule_fixes_is_in_the_table(self):
        launch = build_geometry(
            make_recipe(grid=("4", "tile"), smem="tile * 8", constants={"block": 64, "tile": 2})
        )
        assert launch.constants == (4, 2, 1, 64, 1, 1, 16)
        assert launch.c_expressions == tuple(f"tilus_constants[{slot}]" for slot in range(7))

    def test_what_arguments_decide_is_c_over_the_table(self):
        launch = build_geometry(make_recipe(constants={"block": 64}))
        assert launch.c_expressions[0] == "tb_cdiv(number[3], tilus_constants[7])"
        assert launch.constants == (0, 1, 1, 64, 1, 1, 0, 64)
        assert launch.sources[0] == "grid.x = cdiv(n, block)"

    def test_attributes_have_slots_where_the_launch_has_one(self):
        for block, tile in ((64, 2), (32, 4)):
            constants = {"block": block, "tile": tile, "fast": True}
            launch = build_geometry(make_recipe(cluster=("tile",), pdl="fast", constants=constants))
            assert launch.constants == (0, 1, 1, block, 1, 1, 0, tile, 1, 1, 0, 1, -1, block)
            assert launch.c_expressions[0] == "tb_cdiv(number[3], tilus_constants[13])"

    def test_strings_flags_and_floats_are_folded_in(self):
        constants = {"block": 64, "mode": "fast", "wide": True, "ratio": 2.0}
        grid = ('n * 2 if mode == "fast" else n', "n if wide else 1")
        launch = build_geometry(make_recipe(grid=grid, constants=constants))
        assert launch.c_expressions[:2] == ("tb_mul(number[3], INT64_C(2))", "number[3]")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"grid": ("x",)}, "grid.x = x"),
            ({"grid": ("n / 2",)}, "grid.x = n / 2 is not an integer: use //"),
            ({"grid": ("1", "1", "1", "1")}, "1 to 3 sizes, not 4"),
            ({"smem": "block * 2 ** 60"}, "smem = block * 2 ** 60: overflow"),
            ({"block": ("block // 0",)}, "block.x = block // 0: division by zero"),
        ],
    )
    def test_what_cannot_be_launched(self, changes, message):
        with pytest.raises(ValueError, match=r"grid|block|smem") as caught:
            build_geometry(make_recipe(**changes))
        assert message in str(caught.value)


class TestLauncher:
    def test_schedules_share_it(self):
        one = make_recipe(constants={"block": 64})
        other = make_recipe(constants={"block": 128}, smem="4096")
        assert format_launcher(one) == format_launcher(other)
        assert len({format_program_source(recipe, "program.cubin") for recipe in (one, other)}) == 2

    @pytest.mark.parametrize("pipeline", ["kernel", "host", "cpu"])
    def test_no_table_of_it_is_written_to_by_the_loader(self, pipeline, tmp_path):
        """Each pointer in one would be 24 bytes of the file, and its page a process's own."""
        arguments = {"x": "f32*[n * 2, 3]", "y": "f32*[n]", "n": "i32", "on": "bool"}
        recipe = make_recipe(pipeline, arguments=arguments)
        (tmp_path / "launcher.c").write_text(format_launcher(recipe))
        argv = collect_tools(make_toolchain()).fill_placeholders(LAUNCHER_STEP.argv)
        subprocess.run(argv, cwd=tmp_path, check=True)
        sections = Elf((tmp_path / "launcher.o").read_bytes()).sections
        assert not [part.name for part in sections if part.name.startswith(".data.rel")]

    def test_a_name_that_the_library_exports_is_refused(self):
        for pipeline, symbol in [("cpu", "launch"), ("host", "launch_error")]:
            with pytest.raises(ValueError, match="cannot be called"):
                format_launcher(make_recipe(pipeline, symbol=symbol))
        assert "launch" in format_launcher(make_recipe(symbol="launch"))


class TestScrub:
    def test_times_temporary_names_and_directories_go(self):
        output = (
            b"ptxas info    : Used 10 registers\n"
            b"ptxas info    : Compile time = 2.276 ms\n"
            b"/stage/x/work/source.cu(3): error: no\n"
            b"/opt/cuda-13/include/a.h(1): warning: tmpxft_0000541c_00000000-6_source.ptx\n\xff\0"
        )
        text = scrub_output(output, {"/stage/x/work": "", "/opt/cuda-13": "{cuda}"})
        assert text == (
            "ptxas info    : Used 10 registers\n"
            "source.cu(3): error: no\n"
            "{cuda}/include/a.h(1): warning: tmp_source.ptx\n��"
        )


class TestStore:
    def test_made_once_by_many_threads(self, tmp_path):
        store, calls = StepStore(str(tmp_path / "s")), []

        def make() -> bytes:
            calls.append(1)
            return b"object"

        threads = [threading.Thread(target=store.get_or_make, args=("k", make)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == [1]
        assert StepStore(str(tmp_path / "s")).get_or_make("k", lambda: b"other") == b"object"

    @pytest.mark.parametrize("damage", [b"", b"torn", None])
    def test_a_damaged_file_is_made_again(self, tmp_path, damage):
        StepStore(str(tmp_path)).get_or_make("k", lambda: b"object")
        path = tmp_path / "k.o"
        path.write_bytes(path.read_bytes()[:-1] + b"x" if damage is None else damage)
        assert StepStore(str(tmp_path)).get_or_make("k", lambda: b"again") == b"again"

    def test_what_was_used_last_stays_in_memory_up_to_a_size(self, tmp_path):
        store = StepStore(str(tmp_path), in_memory=10)
        for key in ("a", "b", "a", "c"):
            store.get_or_make(key, lambda: b"1234")
        for path in tmp_path.iterdir():
            path.unlink()
        again = [store.get_or_make(key, lambda: b"again") for key in "acb"]
        assert again == [b"1234", b"1234", b"again"]
        assert StepStore(str(tmp_path), in_memory=3).get_or_make("d", lambda: b"1234") == b"1234"
