"""Text of a program that hands tensors over by DLPack with ctypes alone."""

TENSOR = """\
class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]

class Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32),
                ("dtype", Type), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]

new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
"""
"""After `import ctypes`: `Device`, `Type`, `Tensor`, and `new`, which makes a capsule."""

ON_GPU = (
    TENSOR
    + """\
class OnGpu:
    "An array of floats whose memory is never read."

    def __init__(self, index, address, *shape):
        self.shape, self.device, self.index = shape, f"cuda:{index}", index
        self.sizes = (ctypes.c_int64 * len(shape))(*shape)
        self.tensor = Tensor(address, Device(2, index), len(shape), Type(2, 32, 1),
                             ctypes.addressof(self.sizes), None, 0, None, None)

    def __dlpack_device__(self):
        return 2, self.index

    def __dlpack__(self, **options):
        return new(ctypes.addressof(self.tensor), b"dltensor", None)
"""
)
"""After `import ctypes`: the above, and `OnGpu`, an array on a device of the made up driver."""

FLOATS = (
    TENSOR
    + """\
class Floats:
    def __init__(self, *values):
        self.data = (ctypes.c_float * len(values))(*values)
        self.shape = (len(values),)
        self.size = (ctypes.c_int64 * 1)(len(values))
        self.tensor = Tensor(ctypes.addressof(self.data), Device(1, 0), 1, Type(2, 32, 1),
                             ctypes.addressof(self.size), None, 0, None, None)

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        return new(ctypes.addressof(self.tensor), b"dltensor", None)
"""
)
"""After `import ctypes`: the above, and `Floats`, an array that needs no other package."""
