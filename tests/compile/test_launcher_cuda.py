"""The kernel pipeline's launcher against a driver that writes down what it is asked."""

import os
import struct
import types
from typing import Any

import pytest
from msgspec.structs import replace

from support.recipes import SAXPY, make_recipe
from tilusbuild.compile.checks import find_launch_problem
from tilusbuild.compile.launcher import format_launcher
from tilusbuild.expr import parse_expression
from tilusbuild.signature.model import NULL, Argument, Tile, make_struct_parameter

TENSOR = {"dtype": "f32", "shape": [1000]}
SECOND = {**TENSOR, "data": 2 << 20}
CALL = {"packed": [1.0, TENSOR, SECOND]}
ON_1 = {"packed": [1.0, {**TENSOR, "device": 1}, {**SECOND, "device": 1}]}
TWO = {"FAKE_CUDA_DEVICES": "2"}
LAUNCH = "launch in primary0 grid=4,1,1 block=256,1,1 shared=0 stream=(nil) parameters: "


def test_a_launch_passes_grid_block_and_parameters(driver, link):
    tensor = {**TENSOR, "byte_offset": 64}  # a part of the pointer
    answer = driver.call(link(make_recipe()), {"packed": [2.5, tensor, SECOND]})
    assert answer.answers == [[0, ""]]
    assert driver.lines("launch") == [LAUNCH + "2.5 0x100040 0x200000 1000"]
    assert driver.lines("cuLibraryLoadData") == ["cuLibraryLoadData an image mode=2"]
    assert driver.lines("cuLibraryGetKernel") == ["cuLibraryGetKernel saxpy"]


def test_parameters_of_the_kernel_may_be_others_and_null(driver, link):
    # Given a kernel with a parameter that no argument has, and without one of the arguments,
    recipe = make_recipe()
    a, _, y, n = recipe.signature.arguments
    signature = replace(recipe.signature, chosen_parameters=(a, NULL, y, n))
    # when it is called,
    driver.call(link(replace(recipe, signature=signature)), CALL)
    # then the driver gets those parameters.
    (line,) = driver.lines("launch")
    assert line.endswith("parameters: 1 (nil) 0x200000 1000")


def test_a_parameter_may_be_a_struct_of_values(driver, link):
    # Given a kernel that takes a tensor and numbers as one struct, and a number alone,
    recipe = make_recipe()
    dtype = "struct Rows { void* data; f32 a; i64 bytes; i16 tiles[2] }"
    values = tuple(map(parse_expression, ("x", "a", "n * 4", "cdiv(n, 256)", "7")))
    rows = make_struct_parameter(dtype, values)
    half = make_struct_parameter("struct Half { i32 n }", (parse_expression("n // 2"),))
    signature = replace(
        recipe.signature, chosen_parameters=(rows, *recipe.signature.arguments[2:], half)
    )
    library = link(replace(recipe, signature=signature))
    more = [1.0, {**TENSOR, "shape": [1 << 24]}, {**SECOND, "shape": [1 << 24]}]
    # when it is called with values that fit their members, and with others,
    environment = {"FAKE_CUDA_PARAMETERS": "bytes32 ptr i32 i32"}
    answer = driver.call(library, CALL, {"packed": more}, environment=environment)
    # then the driver gets the members as C lays them out, and no number that is cut.
    (line,) = driver.lines("launch")
    packed = struct.pack("<Qf4xqhh4x", 0x100000, 1.0, 4000, 4, 7)
    assert line.endswith(f"parameters: {packed.hex()} 0x200000 1000 500")
    assert answer.answers[1] == [-1, "saxpy: Rows.tiles[0] is 65536, outside -32768..32767"]


def test_the_code_is_loaded_once_for_all_threads(driver, link):
    answer = driver.call(link(make_recipe()), {"packed": [1.0, TENSOR, SECOND], "threads": 16})
    assert answer.answers == [[0, ""]] * 16
    assert len(driver.lines("cuLibraryLoadData")) == 1
    assert len(driver.lines("cuDevicePrimaryCtxRetain")) == 1
    assert len(driver.lines("launch")) == 16
    assert len(driver.lines("push")) == len(driver.lines("pop")) == 16


def test_shared_memory_grows_with_the_arguments(driver, link):
    def call(n):
        return {"packed": [1.0, {**TENSOR, "shape": [n]}, {**SECOND, "shape": [n]}]}

    driver.call(link(make_recipe(smem="n * 4")), call(15000), call(20000), call(16000))
    assert driver.lines("cuKernelSetAttribute") == [
        "cuKernelSetAttribute 8=60000 device=0",
        "cuKernelSetAttribute 8=80000 device=0",
    ]


class TestAttributes:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"cluster": ("2",)}, " attributes: cluster=2,1,1 "),
            ({"cluster": ("n // 500", "1", "1")}, " attributes: cluster=2,1,1 "),
            ({"cooperative": True}, " attributes: 2=1 "),
            ({"pdl": True}, " attributes: 6=1 "),
            (
                {"cluster": ("1", "2"), "grid": ("1", "2"), "cooperative": True, "pdl": 1},
                " attributes: cluster=1,2,1 2=1 6=1 ",
            ),
            ({"cluster": ("1",), "cooperative": False, "pdl": 0}, "stream=(nil) parameters"),
            ({"carve_out": 100}, "stream=(nil) parameters"),
        ],
    )
    def test_are_those_of_the_launch(self, driver, link, changes, message):
        answer = driver.call(link(make_recipe(**changes)), CALL)
        assert answer.answers == [[0, ""]]
        (line,) = driver.lines("launch")
        assert message in line
        assert line.startswith("launch in primary0 grid=")
        assert line.endswith("block=256,1,1 shared=0 stream=(nil)" + line.split("(nil)")[1])
        assert line.endswith(" parameters: 1 0x100000 0x200000 1000")

    def test_what_belongs_to_the_kernel_is_set_once_a_device(self, driver, link):
        library = link(make_recipe(cluster=("4", "4"), grid=("4", "4"), carve_out=50, smem="65536"))
        answer = driver.call(library, CALL, ON_1, CALL, environment=TWO)
        assert [status for status, _ in answer.answers] == [0, 0, 0]
        assert sorted(driver.lines("cuKernelSetAttribute")) == sorted(
            f"cuKernelSetAttribute {attribute}={value} device={device}"
            for attribute, value in ((8, 65536), (9, 50), (14, 1))
            for device in (0, 1)
        )


class TestDevices:
    @pytest.mark.parametrize(("call", "context"), [(CALL, "own0"), (ON_1, "primary1")])
    def test_a_current_context_is_used_for_its_device_and_put_back(
        self, driver, link, call, context
    ):
        answer = driver.call(link(make_recipe()), {"make_current": 0}, call, environment=TWO)
        assert driver.lines("launch")[0].startswith(f"launch in {context} ")
        assert bool(driver.lines("push")) == (context != "own0")
        assert answer.current == "own0"

    def test_managed_memory_goes_where_the_others_are(self, driver, link):
        call = {"packed": [1.0, {**TENSOR, "device_kind": 13}, {**SECOND, "device": 1}]}
        assert driver.call(link(make_recipe()), call, environment=TWO).answers == [[0, ""]]
        assert driver.lines("launch")[0].startswith("launch in primary1 ")

    def test_tensors_on_two_devices_and_on_one_that_is_not_there(self, driver, link):
        apart = {"packed": [1.0, TENSOR, {**SECOND, "device": 1}]}
        absent = {"packed": [1.0, {**TENSOR, "device": 3}, {**SECOND, "device": 3}]}
        (_, message), (_, no_device) = driver.call(
            link(make_recipe()), apart, absent, environment=TWO
        ).answers
        assert message == (
            'saxpy: argument "y" (3rd): expected f32*[n] with n = 1000 (from "x"), '
            'got f32 tensor of shape (1000,) on cuda:1, but "x" is on cuda:0'
        )
        assert "there is no CUDA device 3" in no_device


class TestPlainCall:
    def test_takes_dimensions_and_a_stream(self, driver, link):
        x, y = (1 << 40) + 4096, (1 << 40) + 8192
        call = {"plain": [2.0, x, y, 300], "stream": 0x77}
        assert driver.call(link(make_recipe()), call, environment=TWO).answers == [[0, ""]]
        (line,) = driver.lines("launch")
        assert line.startswith("launch in primary1 grid=2,1,1 block=256,1,1 shared=0 stream=0x77 ")
        assert line.endswith(" parameters: 2 0x10000001000 0x10000002000 300")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ([2.0, 1 << 40, 1 << 40, -1], 'argument "n": -1 is outside 0..2147483647'),
            ([2.0, 0, 1 << 40, 5], 'argument "x" is a null pointer'),
        ],
    )
    def test_checks(self, driver, link, arguments, text):
        answer = driver.call(link(make_recipe()), {"plain": arguments})
        assert answer.answers == [[-1, f"saxpy: {text}"]]
        assert driver.lines("launch") == []


def test_a_size_of_zero_launches_nothing(driver, link):
    empty = {**TENSOR, "shape": [0], "data": 0}
    answer = driver.call(link(make_recipe()), {"packed": [1.0, empty, empty]})
    assert answer.answers == [[0, ""]]
    assert driver.lines() == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"grid": ("1", "n * 100")}, "grid.y is 100000, outside 1..65535"),
        ({"grid": ("n // 2000",)}, "grid.x is 0, outside 1..2147483647"),
        ({"block": ("n + 100",)}, "block.x is 1100, outside 1..1024"),
        ({"block": ("n", "2")}, "a block of (1000, 2, 1) has more than 1024 threads"),
        ({"block": ("1", "1", "n")}, "block.z is 1000, outside 1..64"),
        ({"smem": "0 - n"}, "the dynamic shared memory is -1000 bytes"),
        ({"grid": ("n // (n - 1000)",)}, "grid.x = n // (n - 1000): a division by zero"),
        ({"grid": ("n * n * n * n * n * n * n",)}, "a number beyond 64 bits"),
        ({"smem": "150000"}, "a block needs 150000 bytes of dynamic shared memory"),
        ({"smem": "150000"}, "device 0 has at most 101376"),
        ({"cluster": ("3",)}, "grid.x is 4, which is not a multiple of cluster.x, 3"),
        ({"cluster": ("n",)}, "cluster.x is 1000, outside 1..16"),
        ({"cluster": ("n - 1000",)}, "cluster.x is 0, outside 1..16"),
        (
            {"cluster": ("n // 250", "8"), "grid": ("n", "8")},
            "a cluster of (4, 8, 1) has more than 16 blocks",
        ),
    ],
)
def test_a_launch_out_of_range(driver, link, changes, text):
    answer = driver.call(link(make_recipe(**changes)), CALL)
    status, message = answer.answers[0]
    assert status == -1
    assert text in message
    assert driver.lines("launch") == []
    assert answer.current == "none"


@pytest.mark.parametrize(
    ("failing", "text"),
    [
        ("cuInit=100", "the CUDA driver cannot start: CUDA_ERROR_NO_DEVICE (a fake error)"),
        ("cuLibraryLoadData=209", "the kernel (built for sm_90a) cannot be loaded"),
        (
            "cuKernelGetFunction=209",
            "the kernel is built for sm_90a and cannot be loaded on device 0 (sm_89)",
        ),
        ("cuLibraryGetKernel=500", "was not found"),
        ("cuKernelSetAttribute=1", "device 0 cannot have a carve-out of shared memory"),
        ("cuLaunchKernelEx=720", "the launch failed: grid (4, 1, 1), block (256, 1, 1), 0 bytes"),
        ("cuLaunchKernelEx=720", "cluster (1, 1, 1), cooperative: CUDA_ERROR_FAKE (a fake error)"),
        ("cuLaunchKernel=1", "the launch failed: grid (4, 1, 1), block (256, 1, 1), 0 bytes"),
    ],
)
def test_a_driver_that_refuses(driver, link, failing, text):
    attributes: dict[str, Any] = {"cooperative": True, "carve_out": 10}
    library = link(make_recipe(**({} if failing == "cuLaunchKernel=1" else attributes)))
    answer = driver.call(library, CALL, environment={"FAKE_CUDA_FAIL": failing})
    status, message = answer.answers[0]
    assert status == -1
    assert text in message
    assert answer.current == "none"


def test_a_driver_that_is_too_old(old_driver, link):
    answer = old_driver.call(link(make_recipe()), CALL)
    assert "a driver of CUDA 12.0 or later is needed" in answer.answers[0][1]


def test_without_a_driver_it_loads_and_says_so(driver, link, tmp_path):
    on_cpu = {**TENSOR, "device_kind": 1}
    answer = driver.call(
        link(make_recipe()),
        CALL,
        {"packed": [1.0, on_cpu, on_cpu]},
        driver=False,
        environment={"LD_LIBRARY_PATH": str(tmp_path)},
    )
    for status, text in answer.answers:
        assert status == -1
        assert text.startswith("saxpy: no CUDA driver was found on this machine (libcuda.so.1")


def test_the_stream_is_the_one_of_tvm_ffi(driver, link):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    directory = os.path.join(os.path.dirname(tvm_ffi.__file__), "lib")
    driver.call(
        link(make_recipe()),
        {"packed": [1.0, TENSOR, SECOND], "stream": 0x1234},
        tvm_ffi=os.path.join(directory, "libtvm_ffi.so"),
    )
    assert "stream=0x1234 " in driver.lines("launch")[0]


def test_scalars_of_every_type_keep_their_bytes(driver, link):
    arguments = {"x": "f32*[n]", "n": "i64", "d": "f64", "f": "f32", "b": "bool", "u": "u8"}
    call = {"packed": [TENSOR, 2, 0.5, True, 200]}
    types = {"FAKE_CUDA_PARAMETERS": "ptr i64 f64 f32 u8 u8"}
    answer = driver.call(link(make_recipe(arguments=arguments, out=())), call, environment=types)
    assert answer.answers == [[0, ""]]
    assert driver.lines("launch")[0].endswith("parameters: 0x100000 1000 2 0.5 1 200")


class TestNewFloats:
    ARGUMENTS = types.MappingProxyType(
        {"x": "f4e2m1x2*[m, kp]", "scale": "f8e8m0*[m, kp // 16]", "m": "i32", "kp": "i32"}
    )
    PAIRS = types.MappingProxyType({"dtype": "f4e2m1x2", "shape": [2, 64]})
    SCALES = types.MappingProxyType({"dtype": "f8e8m0", "shape": [2, 4], "data": 2 << 20})

    def call(self, driver, link, x, scale):
        recipe = make_recipe(arguments=dict(self.ARGUMENTS), out=(), grid=("m",))
        parameters = {"FAKE_CUDA_PARAMETERS": "ptr ptr i32 i32"}
        answer = driver.call(
            link(recipe), {"packed": [dict(x), dict(scale)]}, environment=parameters
        )
        return answer.answers[0]

    def test_are_passed_with_shapes_in_bytes(self, driver, link):
        assert self.call(driver, link, self.PAIRS, self.SCALES) == [0, ""]
        assert driver.lines("launch")[0].endswith("parameters: 0x100000 0x200000 2 64")

    @pytest.mark.parametrize("dtype", ["f4e2m1", "u8", "f8e8m0"])
    def test_are_no_others(self, driver, link, dtype):
        status, text = self.call(driver, link, {**self.PAIRS, "dtype": dtype}, self.SCALES)
        assert status == -1
        assert 'argument "x" (1st): expected f4e2m1x2*[m, kp]' in text
        assert f"got {dtype} tensor" in text
        status, text = self.call(driver, link, self.PAIRS, {**self.SCALES, "dtype": "f4e2m1x2"})
        assert 'argument "scale" (2nd): expected f8e8m0*' in text
        assert "got f4e2m1x2 tensor" in text


class TestStructs:
    ARGUMENTS = types.MappingProxyType(
        {
            "p": "struct P { u16 a; i32 b; u8 c }",
            "x": "f32*[n]",
            "n": "i32",
            "q": "struct Q { u8 a }",
        }
    )

    def test_are_copied_from_the_callers_bytes(self, driver, link):
        library = link(make_recipe(arguments=dict(self.ARGUMENTS), out=()))
        answer = driver.call(
            library,
            {"packed": ["0102030405060708090a0b0c", TENSOR, "ff"]},
            {"packed": ["00" * 11, TENSOR, "ff"]},
            environment={"FAKE_CUDA_PARAMETERS": "bytes12 ptr i32 bytes1"},
        )
        (line,) = driver.lines("launch")
        assert line.endswith(" parameters: 0102030405060708090a0b0c 0x100000 1000 ff")
        assert answer.answers[0] == [0, ""]
        message = (
            'saxpy: argument "p" (1st): expected struct P { u16 a; i32 b; u8 c }, '
            "got an object of tvm-ffi type 9 of 11, where it has 12"
        )
        assert answer.answers[1] == [-1, message]


def tile(*box, **more):
    return Tile("x", tuple(parse_expression(size) for size in box), **more)


class TestTensorMaps:
    """`x` is for the map alone, so the kernel takes its map, and `n`."""

    SHAPE = types.MappingProxyType({"dtype": "bf16", "shape": [48, 200]})
    PARAMETERS = types.MappingProxyType({"FAKE_CUDA_PARAMETERS": "bytes8 i32"})

    def recipe(self, *, tensor_map=None, more=None, **changes):
        arguments = {
            "x": ("bf16*[m, n]", {"is_parameter": False, **(more or {})}),
            "x_map": tensor_map or tile("block // 4", "32"),
            "m": ("i32", {"is_parameter": False}),
            "n": "i32",
            **({"row": ("i64", {"is_parameter": False})} if more else {}),
        }
        changes.setdefault("grid", ("m",))
        return make_recipe(arguments=arguments, out=(), **changes)

    def call(self, driver, library, *tensors):
        calls = [{"packed": [{**self.SHAPE, **tensor}]} for tensor in tensors]
        return driver.call(library, *calls, environment=self.PARAMETERS).answers

    def test_is_made_of_the_tensor_with_the_innermost_dimension_first(self, driver, link):
        widths = {"swizzle": parse_expression(64), "l2_promotion": parse_expression(256)}
        tensor_map = tile("block // 4", "32", **widths, nan=True)
        assert self.call(driver, link(self.recipe(tensor_map=tensor_map)), {}) == [[0, ""]]
        (line,) = driver.lines("map")
        assert line.startswith("map type=9 at 0x100000 200:0:32:1 48:400:64:1 interleave=0 ")
        assert line.endswith(" swizzle=2 promotion=3 fill=1 aligned=1")
        assert driver.lines("launch")[0].endswith(" parameters: a0a0a0a0a0a0a0a0 200")

    def test_is_made_once_of_the_same_memory(self, driver, link):
        other = {"data": 2 << 20}
        answers = self.call(driver, link(self.recipe()), {}, {}, other, other, {"shape": [48, 208]})
        assert answers == [[0, ""]] * 5
        assert len(driver.lines("map")) == 3
        parameters = [line.split()[-2][:2] for line in driver.lines("launch")]
        assert parameters == ["a0", "a0", "a1", "a1", "a2"]

    def test_has_the_tensors_own_strides(self, driver, link):
        recipe = self.recipe(more={"strides": ("row", 1)})
        self.call(driver, link(recipe), {"strides": [800, 1]})
        assert " 200:0:32:1 48:1600:64:1 " in driver.lines("map")[0]

    def test_may_have_another_type_shape_and_strides(self, driver, link):
        dims = (parse_expression("m // 2"), 100)
        view = Argument("view", "u32", dims, strides=(parse_expression("n + 8"), 1))
        assert self.call(driver, link(self.recipe(tensor_map=tile("8", "16", view=view))), {}) == [
            [0, ""]
        ]
        assert " type=2 at 0x100000 100:0:16:1 24:832:8:1 " in driver.lines("map")[0]

    def test_the_plain_function_makes_it_too(self, driver, link):
        answer = driver.call(
            link(self.recipe()), {"plain": [1 << 32, 48, 200]}, environment=self.PARAMETERS
        )
        assert answer.answers == [[0, ""]]
        assert "map type=9 at 0x100000000 200:0:32:1 48:400:64:1 " in driver.lines("map")[0]
        assert driver.lines("launch")[0].endswith(" parameters: a0a0a0a0a0a0a0a0 200")

    @pytest.mark.parametrize(
        ("tensor", "message"),
        [
            ({"shape": [48, 201]}, "a stride of 402 bytes, which must be a multiple of 16"),
            ({"data": (1 << 20) + 8}, "its address is not a multiple of 16 bytes"),
            ({"shape": [48, 0]}, "axis 1 has no elements"),
        ],
    )
    def test_memory_that_cannot_have_one(self, driver, link, tensor, message):
        ((status, text),) = self.call(driver, link(self.recipe()), tensor)
        assert status == -1
        assert text.startswith('saxpy: the tensor map "x_map" of "x": ')
        assert message in text
        assert driver.lines("launch") == []
        assert len(driver.lines("push")) == len(driver.lines("pop")) == 1

    def test_a_driver_that_refuses(self, driver, link):
        environment = {**self.PARAMETERS, "FAKE_CUDA_FAIL": "cuTensorMapEncodeTiled=1"}
        call = {"packed": [dict(self.SHAPE)]}
        answer = driver.call(link(self.recipe()), call, call, environment=environment)
        assert [status for status, _ in answer.answers] == [-1, -1]
        assert 'there can be no tensor map "x_map" of "x": CUDA_ERROR_FAKE' in answer.answers[1][1]
        assert answer.current == "none"

    @pytest.mark.parametrize(
        ("box", "more", "message"),
        [
            (("257", "32"), {}, "x_map.box.0 is 257, outside 1..256"),
            (("64", "12"), {}, "a row of x_map.box has 24 bytes, not a multiple of 16"),
            (("64", "64"), {"swizzle": 64}, "128 bytes, more than the 64 of its swizzle"),
            (("64", "64"), {"l2_promotion": 32}, "promotion is 32, not one of 0, 64, 128, 256"),
            (("64", "64"), {"interleave": 16}, "interleaved, which needs 3 dimensions"),
            (("64", "64"), {"element_strides": 9}, "x_map.element-strides.1 is 9, outside 1..8"),
        ],
    )
    def test_a_map_that_no_device_has_is_not_compiled(self, box, more, message):
        values: dict[str, Any] = {name: parse_expression(value) for name, value in more.items()}
        if "element_strides" in more:
            values["element_strides"] = (parse_expression(1), values["element_strides"])
        assert message in (find_launch_problem(self.recipe(tensor_map=tile(*box, **values))) or "")
        old = find_launch_problem(self.recipe(archs=("sm_80",)))
        assert old == "tensor maps need sm_90 or later, which sm_80 is not"

    @pytest.mark.parametrize("swizzle", [0, 64])
    def test_a_row_may_be_as_wide_as_its_swizzle(self, swizzle):
        tensor_map = tile("block // 4", "32", swizzle=parse_expression(swizzle))
        assert find_launch_problem(self.recipe(tensor_map=tensor_map)) is None


class TestConstants:
    """`saxpy` takes `x` and `n`, and reads three variables."""

    ARGUMENTS = types.MappingProxyType(
        {
            "filter": ("f32*[k]", {"constant": "d_filter"}),
            "x": "f32*[n]",
            "scale": ("f32", {"constant": "nn::scale"}),
            "p": ("struct P { i32 a; u8 b }", {"constant": "p"}),
            "n": "i32",
            "k": ("i32", {"is_parameter": False}),
        }
    )
    VARIABLES = types.MappingProxyType(
        {
            "FAKE_CUDA_PARAMETERS": "ptr i32",
            "FAKE_CUDA_VARIABLES": "d_filter:36 _ZN2nn5scaleE:4 p:8",
        }
    )
    FILTER = types.MappingProxyType({"dtype": "f32", "shape": [9], "data": 3 << 20})

    def recipe(self, **changes):
        return make_recipe(arguments=dict(self.ARGUMENTS), out=(), **changes)

    def call(self, driver, library, filter_, *, environment=(), calls=1, **more):
        call = {"packed": [dict(filter_), TENSOR, 2.5, "0100000002000000"], **more}
        variables = {**self.VARIABLES, **dict(environment)}
        return driver.call(library, *[call] * calls, environment=variables)

    def test_are_copied_before_the_launch_and_are_no_parameters(self, driver, link):
        answer = self.call(driver, link(self.recipe()), self.FILTER, calls=2)
        assert answer.answers == [[0, ""]] * 2
        copies = [
            "copy 36 bytes 0x300000 to 0xc000 stream=(nil)",
            "copy 4 bytes 00002040 to 0xc100 stream=(nil)",
            "copy 8 bytes 0100000002000000 to 0xc200 stream=(nil)",
            LAUNCH + "0x100000 1000",
        ]
        lines = [line for line in driver.lines() if line.startswith(("copy", "launch"))]
        assert lines == copies * 2
        assert all(line.endswith("mode=2") for line in driver.lines("cuLibraryGetGlobal"))
        assert driver.lines("cuStreamSynchronize") == []

    def test_go_with_tensor_maps_and_attributes(self, driver, link):
        arguments = {
            "x": ("bf16*[m, n]", {"is_parameter": False}),
            "x_map": tile("64", "32"),
            "scale": ("f32", {"constant": "scale"}),
            "m": "i32",
            "n": ("i32", {"is_parameter": False}),
        }
        library = link(make_recipe(arguments=arguments, out=(), grid=("m",), cluster=("2",)))
        environment = {"FAKE_CUDA_PARAMETERS": "bytes4 i32", "FAKE_CUDA_VARIABLES": "scale:4"}
        good = {"packed": [{"dtype": "bf16", "shape": [48, 200]}, 1.0]}
        bad = {"packed": [{"dtype": "bf16", "shape": [48, 201]}, 1.0]}
        answer = driver.call(library, good, bad, good, environment=environment)
        assert [status for status, _ in answer.answers] == [0, -1, 0]
        assert len(driver.lines("copy 4 bytes 0000803f")) == len(driver.lines("launch")) == 2

    def test_may_be_all_that_a_kernel_without_parameters_reads(self, driver, link):
        arguments = {"scale": ("f32", {"constant": "scale"})}
        environment = {"FAKE_CUDA_PARAMETERS": "", "FAKE_CUDA_VARIABLES": "scale:4"}
        library = link(make_recipe(arguments=arguments, out=(), grid=("4",)))
        answer = driver.call(library, {"packed": [1.0]}, environment=environment)
        assert (answer.answers, driver.lines("launch")) == ([[0, ""]], [LAUNCH.rstrip()])

    def test_are_those_of_the_context_that_is_current(self, driver, link):
        host = {**self.FILTER, "device_kind": 1, "shape": [0]}
        on_1 = {"packed": [host, {**TENSOR, "device": 1}, 1.0, "00" * 8]}
        answer = driver.call(link(self.recipe()), on_1, environment={**self.VARIABLES, **TWO})
        assert answer.answers == [[0, ""]]
        assert [line.split(" to ")[1] for line in driver.lines("copy")] == [
            "0xc110 stream=(nil)",
            "0xc210 stream=(nil)",
        ]
        assert driver.lines("cuLibraryGetGlobal d_filter") == [
            "cuLibraryGetGlobal d_filter in primary1 mode=2"
        ]

    def test_another_thread_does_not_come_between_copy_and_launch(self, driver, link):
        answer = self.call(driver, link(self.recipe()), self.FILTER, threads=16)
        assert answer.answers == [[0, ""]] * 16
        operations = [line.split()[0] for line in driver.lines() if line[:4] in ("copy", "laun")]
        assert operations == ["copy", "copy", "copy", "launch"] * 16

    def test_more_than_the_variable_holds(self, driver, link):
        """What a fixed shape has is held against the code when it is compiled."""
        library = link(self.recipe())
        answer = self.call(driver, library, {**self.FILTER, "shape": [10]})
        message = 'saxpy: argument "filter" has 40 bytes; the variable "d_filter" has 36'
        assert answer.answers == [[-1, message]]
        assert driver.lines("copy") == driver.lines("launch") == []
        assert answer.current == "none"
        assert self.call(driver, library, {**self.FILTER, "shape": [4]}).answers == [[0, ""]]
        assert "copy 16 bytes" in driver.lines("copy")[0]

    def test_a_variable_that_is_not_there(self, driver, link):
        environment = {"FAKE_CUDA_VARIABLES": "d_filter:36 p:8"}
        answer = self.call(driver, link(self.recipe()), self.FILTER, environment=environment)
        ((status, text),) = answer.answers
        assert status == -1
        assert 'the variable "_ZN2nn5scaleE" for the argument "scale" was not found' in text
        assert driver.lines("copy") == []

    @pytest.mark.parametrize(
        ("failing", "message"),
        [
            ("cuMemcpyAsync=1", '"filter" cannot be copied to the variable "d_filter"'),
            ("cuStreamIsCapturing=906", "cuStreamIsCapturing: CUDA_ERROR_FAKE"),
        ],
    )
    def test_a_driver_that_refuses(self, driver, link, failing, message):
        library = link(self.recipe())
        environment = {"FAKE_CUDA_FAIL": failing}
        answer = self.call(driver, library, self.FILTER, environment=environment, calls=2)
        assert [status for status, _ in answer.answers] == [-1, -1]  # and no lock is left
        assert message in answer.answers[1][1]
        assert driver.lines("launch") == []
        assert answer.current == "none"

    @pytest.mark.parametrize("kind", [1, 3])
    def test_a_tensor_may_be_the_hosts(self, driver, link, kind):
        pinned = {**self.FILTER, "data": (7 << 40) + 64, "device_kind": kind}
        answer = self.call(driver, link(self.recipe()), pinned)
        assert answer.answers == [[0, ""]]
        assert "copy 36 bytes 0x70000000040 " in driver.lines("copy")[0]

    def test_is_waited_for_where_the_device_reads_the_hosts_memory_itself(self, driver, link):
        environment = {"FAKE_CUDA_PAGEABLE": "1"}
        self.call(driver, link(self.recipe()), self.FILTER, environment=environment)
        order = [line.split()[0] for line in driver.lines()]
        assert order.index("cuStreamSynchronize") == order.index("launch") - 1

    def test_of_the_host_none_goes_into_a_graph(self, driver, link):
        """A replay would read what the caller has taken back."""
        capturing = {"FAKE_CUDA_CAPTURING": "1"}
        answer = self.call(driver, link(self.recipe()), self.FILTER, environment=capturing)
        ((status, text),) = answer.answers
        assert status == -1
        assert text.startswith('saxpy: argument "scale" is in the host\'s memory, which the graph')
        assert driver.lines("copy") == driver.lines("launch") == []
        arguments = {k: self.ARGUMENTS[k] for k in ("filter", "x", "n", "k")}
        library = link(make_recipe(arguments=arguments, out=()))
        both = {**self.VARIABLES, **capturing}
        call = {"packed": [dict(self.FILTER), TENSOR]}
        assert driver.call(library, call, environment=both).answers == [[0, ""]]
        assert len(driver.lines("copy")) == 1

    def test_the_plain_function_takes_any_memory(self, driver, link):
        arguments = {k: self.ARGUMENTS[k] for k in ("filter", "x", "n", "k")}
        library = link(make_recipe(arguments=arguments, out=()))
        x = (1 << 40) + 4096
        call = {"plain": [(7 << 40) + 64, x, 1000, 9], "stream": 0x55}
        answer = driver.call(library, call, environment={**self.VARIABLES, **TWO})
        assert answer.answers == [[0, ""]]
        assert driver.lines("copy") == ["copy 36 bytes 0x70000000040 to 0xc010 stream=0x55"]
        assert driver.lines("launch")[0].startswith("launch in primary1 ")

    def test_the_functions_of_a_cpu_target_take_them(self):
        cpu = make_recipe("cpu", arguments=dict(self.ARGUMENTS), out=())
        plain = {k: v[0] if isinstance(v, tuple) else v for k, v in self.ARGUMENTS.items()}
        assert format_launcher(cpu) == format_launcher(make_recipe("cpu", arguments=plain, out=()))


def test_a_workspace_is_zeroed_on_the_stream_of_the_launch(driver, link):
    # Given a kernel with locks, a lock for each block,
    locks = {"bytes": parse_expression("4 * cdiv(n, 256)"), "zeroed": True}
    recipe = make_recipe(arguments={**SAXPY, "locks": ("void*", locks)})
    memory = {"dtype": "u8", "shape": [16], "data": 3 << 20}
    # when calls have them, in enough memory, in too little, and nowhere,
    answer = driver.call(
        link(recipe),
        {"packed": [*CALL["packed"], memory]},
        {"packed": [*CALL["packed"], {**memory, "shape": [15]}]},
        {"packed": [*CALL["packed"], None]},
    )
    # then the first call fills them, and the others end before a launch.
    assert [error for error, _ in answer.answers] == [0, -1, -1]
    assert "of 15 bytes, and 16 are needed" in answer.answers[1][1]
    assert 'workspace "locks" is null, and 16 bytes are needed' in answer.answers[2][1]
    assert driver.lines("fill") == ["fill 16 bytes at 0x300000 with 0 stream=(nil)"]
    assert len(driver.lines("launch")) == 1
