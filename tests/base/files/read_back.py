"""Reads a file of write_example by the description of the format alone: read_back.py <file to write> <write_example>, which may begin with an emulator"""
import json
import struct
import subprocess
import sys

import numpy as np

DTYPES = {"BOOL": "?", "U8": "u1", "F16": "<f2", "F32": "<f4", "I64": "<i8", "F64": "<f8"}


def read(path):
    raw = open(path, "rb").read()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length].decode("utf-8")), raw[8 + length :]
    assert raw[8:9] == b"{" and (8 + length) % 64 == 0
    metadata = header.pop("__metadata__", {})
    spans = sorted(entry["data_offsets"] for entry in header.values())
    ends = [0] + [end for _, end in spans]
    assert [begin for begin, _ in spans] == ends[:-1] and ends[-1] == len(data), "the offsets must cover the data"
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return header, tensors, metadata


def crc32c(data):
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 & -(remainder & 1))
    return remainder ^ 0xFFFFFFFF


def content(header, tensors, metadata):
    """The bytes under the checksum, as safetensors.h describes them."""
    number = lambda value: struct.pack("<Q", value)
    text = lambda value: number(len(value.encode())) + value.encode()
    result = number(len(metadata)) + b"".join(text(key) + text(metadata[key]) for key in sorted(metadata))
    result += number(len(tensors))
    for name in sorted(tensors):
        shape, raw = header[name]["shape"], tensors[name].tobytes()
        result += text(name) + text(header[name]["dtype"]) + number(len(shape)) + b"".join(map(number, shape))
        result += number(len(raw)) + raw
    return result


def main():
    path, *program = sys.argv[1:]
    subprocess.run([*program, path], check=True)
    header, tensors, metadata = read(path)
    expected = {
        "flags": np.array([True, False, True]),
        "layers.0.weight": (np.arange(35, dtype=np.float32) * np.float32(0.5) - np.float32(3)).reshape(5, 7),
        "steps": np.array([[-1], [0], [1 << 40]], np.int64),
        "half": np.array([1, -2], np.float16),
        'scalar "ü"': np.array(2.5),
        "empty": np.zeros((4, 0), np.uint8),
    }
    assert sorted(tensors) == sorted(expected), sorted(tensors)
    for name, value in expected.items():
        assert tensors[name].dtype == value.dtype and tensors[name].shape == value.shape, name
        assert np.array_equal(tensors[name], value), name
    checksum = metadata.pop("ovq.checksum")
    assert metadata == {"format": "pt", "note": "line\nbreak"}, metadata
    assert checksum == f"crc32c:{crc32c(content(header, tensors, metadata)):08x}", checksum


main()
