"""What compiled code says of itself, read in pure Python: no toolkit, no driver, no execution.

Everything here takes untrusted bytes. A reader's work is bounded by the size of its
input, and `BinaryError` is the only exception that it lets out.
"""
