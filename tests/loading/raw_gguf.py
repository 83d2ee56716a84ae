"""Writes GGUF files by hand, sound or not."""

import struct

import numpy as np

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, type_number, payload):
    return string(key) + struct.pack("<I", type_number) + payload


def array(item_type, count, payload):
    return struct.pack("<IQ", item_type, count) + payload


def entry(name, dimensions, type_number=F32, offset=0):
    """A tensor's entry; dimensions as the file has them, innermost first."""
    return string(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, type_number, offset)


ARCHITECTURE = pair("general.architecture", STRING, string("llama"))


def build(pairs=(ARCHITECTURE,), entries=None, data=None, *, magic=b"GGUF", version=3, tensor_count=None, pair_count=None, alignment=32):
    if entries is None:
        entries, data = [entry("a", [4, 2])], np.arange(8, dtype="<f4").tobytes()
    head = magic + struct.pack(
        "<IQQ", version, len(entries) if tensor_count is None else tensor_count, len(pairs) if pair_count is None else pair_count
    )
    head += b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % alignment) + (data or b"")
