"""safetensors_by_hand.py OURS THEIRS: reads the file OURS as the format's description says, and writes what it holds to
THEIRS, in another order and with another header. Where the package `safetensors` is installed, it reads and writes them,
too, and must agree."""
import json
import struct
import sys


def read(path):
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    metadata = header.pop("__metadata__", None)
    tensors = {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()}
    assert sum(len(t[2]) for t in tensors.values()) == len(data)
    return tensors, metadata


def write(path, tensors, metadata):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors:
        header[name] = {"data_offsets": [len(data), len(data) + len(values)], "shape": shape, "dtype": dtype}
        data += values
    text = json.dumps(dict(header, __metadata__=metadata), indent=1).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


ours, theirs = sys.argv[1:]
tensors, metadata = read(ours)
write(theirs, sorted(tensors.items(), reverse=True), metadata)
try:
    import safetensors
except ImportError:
    print("read by hand alone: this Python has no package safetensors")
    sys.exit()
for path in (ours, theirs):
    with open(path, "rb") as f:
        package = {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(f.read())}
    assert package == tensors, (path, package, tensors)
print("read by the package safetensors", safetensors.__version__)
