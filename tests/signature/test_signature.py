"""Signatures: what a type's text means, which arguments are dimensions, what is refused where."""

import pytest

from tilusbuild.expr import Expr
from tilusbuild.runtime.dtypes import DTYPES
from tilusbuild.signature.model import Argument, SignatureError
from tilusbuild.signature.parsing import join_arguments, parse_argument, resolve_constants


def read(**texts: str):
    return join_arguments(parse_argument(Argument(name, text)) for name, text in texts.items())


class TestArgument:
    def test_a_tensor_with_any_spaces(self):
        for text in ("f16*[m, k]", "f16 * [ m,k ]"):
            argument = parse_argument(Argument("a", text))
            assert argument == Argument("a", "f16", ("m", "k"))
            assert argument.format_type() == "f16*[m, k]"

    def test_literal_and_computed_dimensions(self):
        argument = parse_argument(Argument("a", "f32*[4, cdiv(n, 2), max(m, n) * 2]"))
        literal, *computed = argument.dims or ()
        assert literal == 4
        assert [dim.names for dim in computed if isinstance(dim, Expr)] == [
            *map(frozenset, ("n", "mn"))
        ]

    def test_all_that_is_said_is_in_the_text(self):
        for declared, text in (
            (Argument("y", "f32*[n]", out=True, align=16), "y: out f32*[n] align 16"),
            (Argument("n", "i32", low=1, high=8), "n: i32 range 1..8"),
            (Argument("n", "i32", low=1), "n: i32 range 1.."),
        ):
            assert parse_argument(declared).format_line() == text

    @pytest.mark.parametrize(
        ("text", "column", "message"),
        [
            ("", 1, "is not an argument type"),
            ("f16**[m]", 1, "is not an argument type"),
            ("*[m]", 1, "is not an argument type"),
            ("f16[m]", 4, "a tensor needs a * before its shape"),
            ("f16*", 5, 'a tensor needs its shape: "f16*[n]"'),
            ("half*", 6, 'a tensor needs its shape: "f16*[n]"'),
            ("f16*[m", 7, "the shape has no closing ]"),
            ("f16*[m,, k]", 8, "a dimension is missing here"),
            ("f16*[m, ]", 9, "a dimension is missing here"),
            ("f16*[m, k +]", None, 'dimension "k +"'),
            ("f16", 1, "a scalar cannot be f16"),
            ("f16*[m, k + open(1)]", 13, "open"),  # within an expression
        ],
    )
    def test_what_is_wrong_has_a_column(self, text, column, message):
        with pytest.raises(SignatureError) as caught:
            parse_argument(Argument("a", text))
        assert message in caught.value.message
        assert column is None or caught.value.column == column

    @pytest.mark.parametrize(
        ("text", "options", "message"),
        [
            ("i32", {"out": True}, "a scalar cannot be out"),
            ("i32", {"align": 16}, "a scalar has no alignment"),
            ("f32*[n]", {"align": 12}, "not a power of two"),
            ("f32", {"low": 0, "high": 1}, "only an integer scalar can have a range"),
            ("f32*[n]", {"low": 0, "high": 1}, "only an integer scalar can have a range"),
            ("i32", {"low": 8, "high": 1}, "holds no value"),
            ("i32", {"low": 0, "high": 1 << 31}, "does not fit i32"),
            ("u8", {"low": -1, "high": 3}, "does not fit u8"),
            ("i32", {"name": "a-b"}, "is not a name"),
        ],
    )
    def test_options_that_do_not_fit(self, text, options, message):
        with pytest.raises(SignatureError, match=message):
            parse_argument(Argument(**{"name": "a", "dtype": text, **options}))


class TestSignature:
    def test_bare_integers_in_shapes_are_dimensions(self):
        signature = read(a="f16*[m, k]", m="i32", k="i64", alpha="f32", steps="i32")
        assert [argument.name for argument in signature.dimensions] == ["m", "k"]
        assert [a.name for a in signature.callable_arguments] == ["a", "alpha", "steps"]

        # A name within an expression is passed.
        signature = read(x="f32*[n * 2]", n="i32")
        assert [a.name for a in signature.callable_arguments] == ["x", "n"]
        signature = read(x="f32*[n, n+1]", n="i32")
        assert signature.format_text() == "x: f32*[n, (n + 1)]\nn: i32 dimension\n"

    @pytest.mark.parametrize(
        ("texts", "name", "message"),
        [
            ({"x": "f32*[n]"}, "x", 'dimension "n" is neither an argument nor a constant'),
            ({"x": "f32*[n]", "n": "f32"}, "x", 'dimension "n" is f32: a dimension is an integer'),
            ({"x": "f32*[n]", "n": "i16"}, "x", 'dimension "n" is i16: declare it as i32 or i64'),
            ({"x": "f32*[y]", "y": "i32*[2]"}, "x", 'dimension "y" is i32*[2]'),
            ({"x": "f33*[2]"}, "x", '"f33" is neither a dtype nor a constant'),
            ({"x": "f32*[arch.number + 1]"}, "x", "a shape cannot depend on arch.number"),
        ],
    )
    def test_a_shape_that_cannot_be_known(self, texts, name, message):
        with pytest.raises(SignatureError) as caught:
            read(**texts)
        assert caught.value.argument == name
        assert message in caught.value.message

    def test_a_misspelt_dimension_gets_a_suggestion(self):
        with pytest.raises(SignatureError) as caught:
            read(x="f32*[rowz]", rows="i32")
        assert (caught.value.hint or "").startswith(
            'did you mean "rows"?\nor declare it: args.rowz = '
        )

    def test_names_are_unique_and_no_constants(self):
        twice = [parse_argument(Argument("x", "i32"))] * 2
        with pytest.raises(SignatureError, match="declared twice"):
            join_arguments(twice)
        with pytest.raises(SignatureError, match="both an argument and a constant"):
            join_arguments(twice[:1], constants=["x"])


class TestResolve:
    def test_constants_become_dtypes_and_sizes(self):
        declared = join_arguments(
            [
                parse_argument(Argument("x", "dtype*[n, hidden, hidden * 2 + n]")),
                parse_argument(Argument("n", "i32")),
            ],
            constants=["dtype", "hidden"],
        )
        for value in ("bf16", "__nv_bfloat16"):  # also as C++ has it, for the kernel's name
            signature = resolve_constants(declared, {"dtype": value, "hidden": 64, "other": 1.5})
            assert signature.format_text() == "x: bf16*[n, 64, (128 + n)]\nn: i32 dimension\n"
        product = parse_argument(Argument("x", "f32*[a * b]"))
        declared = join_arguments([product], constants=["a", "b"])
        assert resolve_constants(declared, {"a": 6, "b": 7}).arguments[0].dims == (42,)

    @pytest.mark.parametrize(
        ("text", "constants", "message"),
        [
            ("t*[2]", {"t": "f12"}, "constant t is 'f12', which is not a dtype"),
            ("t*[2]", {"t": 5}, "constant t is 5, which is not a dtype"),
            ("f32*[t]", {"t": -1}, "is -1, not a count"),
            ("f32*[t]", {"t": True}, "is True, not a count"),
            ("f32*[1 // t]", {"t": 0}, "dimension 1 // t"),
            ("t", {"t": "f16"}, "a scalar cannot be f16"),
        ],
    )
    def test_constants_that_do_not_fit(self, text, constants, message):
        declared = join_arguments([parse_argument(Argument("x", text))], constants=["t"])
        with pytest.raises(SignatureError) as caught:
            resolve_constants(declared, constants)
        assert message in caught.value.message


def test_dtypes_are_dlpack_s():
    """The pairs that NumPy's own DLPack export gives."""
    np = pytest.importorskip("numpy")
    kinds = {"i": 0, "u": 1, "f": 2, "b": 6}
    names = {"bool": "bool", "i8": "int8", "i64": "int64", "u16": "uint16", "f16": "float16"}
    for name, numpy_name in {**names, "f64": "float64"}.items():
        dtype = np.dtype(numpy_name)
        assert (DTYPES[name].code, DTYPES[name].bytes) == (kinds[dtype.kind], dtype.itemsize)
