"""Run by tests in a process of its own, whose libcuda.so.1 is the fake one: calls a launcher.

Standard input holds JSON: the library, and a list of calls. Standard output gets the answers. Calls
use the tvm-ffi packed convention on values laid out by hand, or the plain C function.
"""

import ctypes
import json
import os
import sys
import threading


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Payload(ctypes.Union):
    _fields_ = [
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("pointer", ctypes.c_void_p),
    ]


class AnyValue(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", Payload)]


class ByteArray(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


CODES = {"i": 0, "u": 1, "f": 2, "bf": 4, "bool": 6}
NEW_FLOATS = {"f8e8m0": (14, 8, 1), "f4e2m1x2": (17, 4, 2), "f4e2m1": (17, 4, 1)}


def tensor(described, keep):
    """{"dtype": "f32", "shape": [4], "device": 0, "data": 4096} as a DLTensor."""
    dtype = described.get("dtype", "f32")
    kind = dtype.rstrip("0123456789")
    shape = described["shape"]
    strides = described.get("strides")
    if dtype in NEW_FLOATS:
        code, bits, lanes = NEW_FLOATS[dtype]
    else:
        code, lanes = CODES[kind], 1
        bits = 8 if dtype == "bool" else int(dtype.removeprefix(kind))
    dl_tensor = DLTensor(
        described.get("data", 1 << 20),
        *(described.get("device_kind", 2), described.get("device", 0)),
        *(len(shape), code, bits, lanes),
        (ctypes.c_int64 * max(1, len(shape)))(*shape),
        (ctypes.c_int64 * len(strides))(*strides) if strides else None,
        described.get("byte_offset", 0),
    )
    keep.append(dl_tensor)
    return dl_tensor


def packed(library, arguments):
    keep: list[object] = []
    values = (AnyValue * max(1, len(arguments)))()
    for value, argument in zip(values, arguments, strict=False):
        if isinstance(argument, dict):
            value.kind = 7
            value.value.pointer = ctypes.addressof(tensor(argument, keep))
        elif isinstance(argument, str):
            data = bytes.fromhex(argument)
            array = ByteArray(data, len(data))
            keep += [data, array]
            value.kind, value.value.pointer = 9, ctypes.addressof(array)
        elif isinstance(argument, bool):
            value.kind, value.value.integer = 2, int(argument)
        elif isinstance(argument, int):
            value.kind, value.value.integer = 1, argument
        elif isinstance(argument, float):
            value.kind, value.value.real = 3, argument
    result = AnyValue()
    status = library.__tvm_ffi_launch(None, values, len(arguments), ctypes.byref(result))
    return [status, library.launch_error().decode()]


def plain(library, arguments, stream):
    typed = [ctypes.c_float(a) if isinstance(a, float) else a for a in arguments]
    typed = [ctypes.c_void_p(a) if isinstance(a, int) and a > 1 << 31 else a for a in typed]
    status = library.launch(*typed, ctypes.c_void_p(stream))
    return [status, library.launch_error().decode()]


def main():
    asked = json.load(sys.stdin)
    driver = ctypes.CDLL("libcuda.so.1") if asked.get("driver", True) else None
    if asked.get("tvm_ffi"):
        import tvm_ffi  # noqa: F401 - the launcher must find it without being told
    library = ctypes.CDLL(asked["library"])
    library.launch_error.restype = ctypes.c_char_p
    answers = []
    for call in asked["calls"]:
        if "make_current" in call:
            assert driver is not None
            driver.fake_make_current(call["make_current"])
            continue
        if "stream" in call and "packed" in call:
            ffi = ctypes.CDLL(asked["tvm_ffi"])
            before = ctypes.c_void_p()
            ffi.TVMFFIEnvSetStream(2, 0, ctypes.c_void_p(call["stream"]), ctypes.byref(before))
        if "packed" in call:
            threads = call.get("threads", 1)
            if threads == 1:
                answers.append(packed(library, call["packed"]))
                continue
            results: list[list[object]] = []
            barrier = threading.Barrier(threads)

            def run(call=call, results=results, barrier=barrier):
                barrier.wait()
                results.append(packed(library, call["packed"]))

            running = [threading.Thread(target=run) for _ in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            answers += results
        else:
            answers.append(plain(library, call["plain"], call.get("stream", 0)))
    current = None
    if driver is not None:
        driver.fake_current.restype = ctypes.c_char_p
        current = driver.fake_current().decode()
    json.dump({"answers": answers, "current": current, "pid": os.getpid()}, sys.stdout)


if __name__ == "__main__":
    main()
