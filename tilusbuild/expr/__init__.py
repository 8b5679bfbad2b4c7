"""The one expression language: parsed once, then scalar, numpy, C and canonical forms that agree.

Importing this package imports neither numpy nor the C writer; they come with their first use.
"""

from tilusbuild.expr.expression import Expr, parse_expression, write_c_prelude
from tilusbuild.expr.tree import ExprError, Value

__all__ = ["Expr", "ExprError", "Value", "parse_expression", "write_c_prelude"]
