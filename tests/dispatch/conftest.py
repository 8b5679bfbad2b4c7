"""The built project of the runtime's tests, for what the builder does with it."""

from __future__ import annotations

import importlib.util
import os
import sys

_path = os.path.join(os.path.dirname(__file__), "..", "runtime", "conftest.py")
_spec = importlib.util.spec_from_file_location("dispatch_marks", _path)
assert _spec is not None
assert _spec.loader is not None
_marks = importlib.util.module_from_spec(_spec)
sys.modules["dispatch_marks"] = _marks
_spec.loader.exec_module(_marks)

_built, built, copied = _marks._built, _marks.built, _marks.copied
