"""dlpack.h's tensor, version 0.8, as ctypes sees it, and NumPy arrays of types that NumPy cannot
export.

NumPy refuses to export arrays of `ml_dtypes`. `Exported` lets it export their bits as unsigned
integers and corrects the element type in the capsule, so that memory stays owned by NumPy's own
capsule: freed by its consumer, or with the capsule when nobody consumed it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from tilusbuild.runtime.dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np

_CPU = 1
_NAME = b"dltensor"


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class ManagedTensor(ctypes.Structure):
    """The start of `DLManagedTensor`: the `DLTensor` in it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def managed_tensor(capsule: Any) -> ManagedTensor:
    """Return the tensor in a capsule that nobody has consumed; it lives as long as the capsule.
    Raises `ValueError` for any other object."""
    return ManagedTensor.from_address(_pointer_of(capsule, _NAME))


class Exported:
    """An array whose elements are of `dtype` (a name of `DTYPES`), for any consumer of DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: str) -> None:
        known = DTYPES[dtype]
        self._bits = array.view(f"uint{known.bits}")
        self._type = _DataType(known.code, known.bits, 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0

    def __dlpack__(self, **_: object) -> Any:
        # Without arguments NumPy makes the unversioned capsule, whose layout is the one above.
        capsule = self._bits.__dlpack__()
        managed_tensor(capsule).dtype = self._type
        return capsule
