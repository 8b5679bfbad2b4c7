"""Write a tree as one C expression over int64_t and double, and the helpers that it calls.

The C expression has the value of the scalar form, or sets `tb_expr_error`: an intermediate integer
beyond 64 bits is an error in C, where Python goes on. Strings have no C form: `fold_constants` must
have removed comparisons of constant strings before.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilusbuild.expr import tree as t
from tilusbuild.expr.tree import INT64_MIN, ExprError, Node

# A chain of comparisons repeats its middle, so nested chains could grow without bound.
MAX_TEXT = 1 << 16
INTEGER, REAL, BOOLEAN = "int", "float", "bool"
_TYPES = (INTEGER, REAL, BOOLEAN)

_HELPERS = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "**": "pow"}
"""Suffixes of helpers: `tb_` + suffix for integers; `tb_f` + suffix for doubles, of + - * only."""


class CWriter:
    """Writes trees as C. `names` has each name's C text, `types` its type if not an integer."""

    def __init__(self, names: Mapping[str, str], types: Mapping[str, str] | None = None) -> None:
        self._names = names
        self._types = types or {}

    def write_node(self, node: Node) -> tuple[str, str]:
        """Return the C text of `node` and its type: "int", "float", "bool". Raises `ExprError`."""
        text, kind = self._write_unbounded(node)
        if len(text) > MAX_TEXT:
            raise ExprError("the expression is too large for C", node.column)
        return text, kind

    def _write_unbounded(self, node: Node) -> tuple[str, str]:
        """Return the same as `write_node`, a text of any length. Raises `ExprError`."""
        match node:
            case t.Const():
                return self._write_constant(node)
            case t.Name():
                return self._write_name(node)
            case t.Unary():
                return self._write_unary(node)
            case t.Binary():
                return self._write_binary(node)
            case t.Compare():
                return self._write_comparison(node), BOOLEAN
            case t.Member():
                return self._write_membership(node), BOOLEAN
            case t.Logic():
                operator = " && " if node.op == "and" else " || "
                text = operator.join(self._write_condition(item) for item in node.items)
                return f"({text})", BOOLEAN
            case t.Select():
                return self._write_selection(node)
            case t.Call():
                return self._write_call(node)

    def _write_constant(self, node: t.Const) -> tuple[str, str]:
        """Return the C literal of a constant and its type. Raises `ExprError` for a string."""
        value = node.value
        if isinstance(value, bool):
            return ("1" if value else "0"), BOOLEAN
        if isinstance(value, str):
            why = "is not a number: leave the quotes out" if value.isdigit() else "has no form in C"
            raise ExprError(f"the string {value!r:.60} {why}", node.column)
        if isinstance(value, float):
            return f"({value!r})", REAL
        # C has no literal for -2^63: it would be the negation of 2^63, which does not fit 64 bits.
        if value == INT64_MIN:
            return "(-INT64_C(9223372036854775807) - 1)", INTEGER
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))", INTEGER

    def _write_name(self, node: t.Name) -> tuple[str, str]:
        """Return the C text of a name and its type. Raises `ExprError` for an unknown one."""
        kind = self._types.get(node.name, INTEGER)
        if node.name not in self._names or kind not in _TYPES:
            raise ExprError(f"{node.name} is not known where this runs as C", node.column)
        return self._names[node.name], kind

    def _write_integer(self, node: Node, operation: str) -> str:
        """Return the C text of an operand of `operation`. Raises `ExprError` for a float."""
        text, kind = self.write_node(node)
        if kind == REAL:
            raise ExprError(f"{operation} needs integers", node.column)
        return text

    @staticmethod
    def _convert_to_real(text: str, kind: str) -> str:
        return text if kind == REAL else f"tb_real({text})"

    def _write_condition(self, node: Node) -> str:
        """Return the C text of a truth value: a number is true unless it is 0."""
        text, kind = self.write_node(node)
        return text if kind == BOOLEAN else f"({text} != 0)"

    def _write_unary(self, node: t.Unary) -> tuple[str, str]:
        """Return the C text of `- + ~ not` and its type. Raises `ExprError`."""
        if node.op == "not":
            return f"(!{self._write_condition(node.operand)})", BOOLEAN
        if node.op == "~":
            # In two's complement ~x is -1 - x, of a bool (0 or 1) as well.
            return f"(-1 - (int64_t){self._write_integer(node.operand, '~')})", INTEGER
        text, kind = self.write_node(node.operand)
        if kind == REAL:
            return f"({node.op}{text})", REAL
        return (f"tb_sub(0, {text})" if node.op == "-" else f"((int64_t){text})"), INTEGER

    def _write_binary(self, node: t.Binary) -> tuple[str, str]:
        """Return the C text of an operation, mostly a call of a helper of `PRELUDE`, and its type.
        Raises `ExprError` for an operation of floats without a form in C."""
        op = node.op
        if op in "&|^":
            left, right = self._write_integer(node.left, op), self._write_integer(node.right, op)
            return f"((int64_t){left} {op} (int64_t){right})", INTEGER
        # A shift is written as a product: C's shift of a negative number, or into the sign, is
        # undefined.
        if op == "<<" and isinstance(node.right, t.Const):
            factor = 1 << int(node.right.value)
            return f"tb_mul({self._write_integer(node.left, op)}, {factor})", INTEGER
        if op == ">>":
            left, right = self._write_integer(node.left, op), self._write_integer(node.right, op)
            return f"tb_shr({left}, {right})", INTEGER
        left, left_kind = self.write_node(node.left)
        right, right_kind = self.write_node(node.right)
        if op == "/":
            # `/` of two integers is a true division, as in Python.
            dividend = self._convert_to_real(left, left_kind)
            divisor = self._convert_to_real(right, right_kind)
            return f"tb_div({dividend}, {divisor})", REAL
        if REAL not in (left_kind, right_kind):
            return f"tb_{_HELPERS[op]}({left}, {right})", INTEGER
        # C's `fmod` and `pow` round in other ways than Python's operators.
        if op in ("//", "%", "**"):
            raise ExprError(f'"{op}" of a float has no form in C', node.column)
        left = self._convert_to_real(left, left_kind)
        right = self._convert_to_real(right, right_kind)
        return f"tb_f{_HELPERS[op]}({left}, {right})", REAL

    def _write_comparison_pair(self, left: Node, op: str, right: Node) -> str:
        """Return the C text of `left op right`, of doubles if either is one. Raises `ExprError`."""
        left_text, left_kind = self.write_node(left)
        right_text, right_kind = self.write_node(right)
        if REAL in (left_kind, right_kind):
            left_text = self._convert_to_real(left_text, left_kind)
            right_text = self._convert_to_real(right_text, right_kind)
        return f"({left_text} {op} {right_text})"

    def _write_comparison(self, node: t.Compare) -> str:
        """Return the C text of a chain of comparisons: of `a < b < c` that of `a < b and b < c`."""
        pairs = []
        left = node.first
        for op, right in node.rest:
            pairs.append(self._write_comparison_pair(left, op, right))
            left = right
        return pairs[0] if len(pairs) == 1 else "(" + " && ".join(pairs) + ")"

    def _write_membership(self, node: t.Member) -> str:
        equal = " || ".join(
            self._write_comparison_pair(node.item, "==", choice) for choice in node.choices
        )
        return f"(!({equal}))" if node.negated else f"({equal})"

    def _write_selection(self, node: t.Select) -> tuple[str, str]:
        """Return the C text of `yes if test else no` and its type. Raises `ExprError` if only one
        side is a float."""
        yes, yes_kind = self.write_node(node.yes)
        no, no_kind = self.write_node(node.no)
        if (yes_kind == REAL) != (no_kind == REAL):
            raise ExprError(
                'one side of "if … else" is an integer and one a float: in C both must be the same'
                " (write 1.0 for 1)",
                node.column,
            )
        # If one side is a bool and one an integer, C converts the bool to an integer.
        kind = yes_kind if yes_kind == no_kind else INTEGER
        return f"({self._write_condition(node.test)} ? {yes} : {no})", kind

    def _write_call(self, node: t.Call) -> tuple[str, str]:
        """Return the C call of a helper and its type. Raises `ExprError` for a float where the
        function needs integers."""
        name = node.function
        if name not in ("min", "max", "abs"):
            arguments = ", ".join(self._write_integer(a, name) for a in node.arguments)
            return f"tb_{name}({arguments})", BOOLEAN if name == "divides" else INTEGER
        operands = [self.write_node(argument) for argument in node.arguments]
        if any(kind == REAL for _, kind in operands):
            prefix, result_kind = "tb_f", REAL
            texts = [self._convert_to_real(text, kind) for text, kind in operands]
        else:
            prefix, result_kind = "tb_", INTEGER
            texts = [text for text, _ in operands]
        # `abs` has one argument; `min` and `max` of more than two are nested.
        text = texts[0] if len(texts) > 1 else f"{prefix}{name}({texts[0]})"
        for next_text in texts[1:]:
            text = f"{prefix}{name}({text}, {next_text})"
        return text, result_kind


PRELUDE = r"""
#include <stdint.h>

/* An expression that has no value sets tb_expr_error and gives any number. Set it to 0 before, look
 * at it after. Define TB_EXPR_FAIL(code) before this text to report it in another way. */
#define TB_EXPR_DIVISION_BY_ZERO 1
#define TB_EXPR_OVERFLOW 2
#define TB_EXPR_DOMAIN 3
#ifndef TB_EXPR_FAIL
static __thread int tb_expr_error __attribute__((unused));
#define TB_EXPR_FAIL(code) (tb_expr_error = tb_expr_error ? tb_expr_error : (code))
#endif
#define TB_EXPR_FN static inline __attribute__((unused))

TB_EXPR_FN int64_t tb_add(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_add_overflow(a, b, &r)) { TB_EXPR_FAIL(TB_EXPR_OVERFLOW); return 0; }
  return r;
}
TB_EXPR_FN int64_t tb_sub(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_sub_overflow(a, b, &r)) { TB_EXPR_FAIL(TB_EXPR_OVERFLOW); return 0; }
  return r;
}
TB_EXPR_FN int64_t tb_mul(int64_t a, int64_t b) {
  int64_t r;
  if (__builtin_mul_overflow(a, b, &r)) { TB_EXPR_FAIL(TB_EXPR_OVERFLOW); return 0; }
  return r;
}
TB_EXPR_FN int64_t tb_floordiv(int64_t a, int64_t b) {
  int64_t q;
  if (b == 0) { TB_EXPR_FAIL(TB_EXPR_DIVISION_BY_ZERO); return 0; }
  if (b == -1) return tb_sub(0, a);
  q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}
TB_EXPR_FN int64_t tb_mod(int64_t a, int64_t b) {
  int64_t m;
  if (b == 0) { TB_EXPR_FAIL(TB_EXPR_DIVISION_BY_ZERO); return 0; }
  if (b == -1) return 0;
  m = a % b;
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
TB_EXPR_FN int64_t tb_pow(int64_t base, int64_t n) {
  int64_t r = 1;
  if (base == 0 || base == 1) return n == 0 ? 1 : base;
  if (base == -1) return n % 2 ? -1 : 1;
  for (; n > 0; n--) r = tb_mul(r, base);
  return r;
}
TB_EXPR_FN int64_t tb_shr(int64_t a, int64_t n) {
  if (n < 0) { TB_EXPR_FAIL(TB_EXPR_DOMAIN); return 0; }
  return a >> (n > 63 ? 63 : n);
}
TB_EXPR_FN int64_t tb_min(int64_t a, int64_t b) { return b < a ? b : a; }
TB_EXPR_FN int64_t tb_max(int64_t a, int64_t b) { return b > a ? b : a; }
TB_EXPR_FN int64_t tb_abs(int64_t a) { return a < 0 ? tb_sub(0, a) : a; }
TB_EXPR_FN int64_t tb_cdiv(int64_t a, int64_t b) {
  int64_t q;
  if (b == 0) { TB_EXPR_FAIL(TB_EXPR_DIVISION_BY_ZERO); return 0; }
  if (b == -1) return tb_sub(0, a);
  q = a / b;
  return q + (a % b != 0 && (a < 0) == (b < 0));
}
TB_EXPR_FN int64_t tb_align(int64_t a, int64_t b) {
  if (b <= 0) { TB_EXPR_FAIL(TB_EXPR_DOMAIN); return 0; }
  return tb_mul(tb_cdiv(a, b), b);
}
TB_EXPR_FN int64_t tb_pow2(int64_t n) {
  if (n < 0 || n > 62) { TB_EXPR_FAIL(TB_EXPR_DOMAIN); return 0; }
  return (int64_t)1 << n;
}
TB_EXPR_FN int64_t tb_log2(int64_t a) {
  if (a <= 0) { TB_EXPR_FAIL(TB_EXPR_DOMAIN); return 0; }
  return 63 - __builtin_clzll((unsigned long long)a);
}
TB_EXPR_FN int tb_divides(int64_t d, int64_t a) { return tb_mod(a, d) == 0; }
TB_EXPR_FN int64_t tb_gcd(int64_t a, int64_t b) {
  while (b != 0) { int64_t t = b == -1 ? 0 : a % b; a = b; b = t; }
  return tb_abs(a);
}

/* A volatile result keeps the compiler from fusing a product with the sum that it goes into: the
 * value is then the same as Python's on every machine. */
TB_EXPR_FN double tb_finite(double r) {
  if (!__builtin_isfinite(r)) { TB_EXPR_FAIL(TB_EXPR_OVERFLOW); return 0; }
  return r;
}
TB_EXPR_FN double tb_real(int64_t a) {
  const int64_t limit = (int64_t)1 << 53;
  if (a > limit || a < -limit) { TB_EXPR_FAIL(TB_EXPR_OVERFLOW); return 0; }
  return (double)a;
}
TB_EXPR_FN double tb_fadd(double a, double b) { return tb_finite(a + b); }
TB_EXPR_FN double tb_fsub(double a, double b) { return tb_finite(a - b); }
TB_EXPR_FN double tb_fmul(double a, double b) { volatile double r = a * b; return tb_finite(r); }
TB_EXPR_FN double tb_div(double a, double b) {
  if (b == 0) { TB_EXPR_FAIL(TB_EXPR_DIVISION_BY_ZERO); return 0; }
  return tb_finite(a / b);
}
TB_EXPR_FN double tb_fmin(double a, double b) { return b < a ? b : a; }
TB_EXPR_FN double tb_fmax(double a, double b) { return b > a ? b : a; }
TB_EXPR_FN double tb_fabs(double a) { return __builtin_fabs(a); }
""".lstrip()
