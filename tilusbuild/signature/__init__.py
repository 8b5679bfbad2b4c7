"""The call signature of a script: arguments in the kernel's order, parsed from the manifest.

An argument is a tensor (`f16*[m, k]`) or a scalar (`i32`, `f32`). An `i32` or `i64` scalar whose
name is a dimension in a tensor's shape is read off that shape, so the caller does not pass it.
Dimensions may also be integers, constants of the script, and expressions over both. A `Signature`
is consistent: every name in a shape is a dimension, another integer argument, or a constant.
"""
