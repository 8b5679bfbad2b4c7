"""The one expression language: parsed once, then scalar, numpy, C and canonical forms that agree.

Importing this package imports neither numpy nor the C writer; they come with their first use.
"""

from tilusbuild.expr.expression import Expr, c_prelude, parse_expression
from tilusbuild.expr.tree import ExprError, Value

__all__ = ["Expr", "ExprError", "Value", "c_prelude", "parse_expression"]
