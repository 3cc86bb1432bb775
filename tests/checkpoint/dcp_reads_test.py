"""PyTorch's distributed checkpoints read a folder of save_checkpoint().

torch's HuggingFaceStorageReader opens files by the package safetensors, which need not be here: then the few calls that
it makes are answered by what stands below. What is tried is torch's own reading of names, offsets and parts.
"""

import json
import os
import subprocess
import sys
import tempfile
import types
import warnings

import torch

warnings.simplefilter("ignore")
PROGRAM = "tests/checkpoint/dcp_reads_program"
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
          "I32": torch.int32, "I64": torch.int64}


class Slice:
    def __init__(self, file, entry):
        self.file, self.entry = file, entry

    def get_shape(self):
        return self.entry["shape"]

    def get_dtype(self):
        return self.entry["dtype"]

    def __getitem__(self, slices):
        begin, end = self.entry["data_offsets"]
        data = bytearray(self.file.data[begin:end])
        whole = torch.frombuffer(data, dtype=DTYPES[self.entry["dtype"]]).view(self.entry["shape"])
        return whole[slices]


class File:
    def __init__(self, filename, framework):
        with open(filename, "rb") as f:
            length = int.from_bytes(f.read(8), "little")
            self.header = json.loads(f.read(length))
            self.data = f.read()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def keys(self):
        return [name for name in self.header if name != "__metadata__"]

    def metadata(self):
        return self.header.get("__metadata__")

    def get_slice(self, name):
        return Slice(self, self.header[name])


try:
    import safetensors.torch  # noqa: F401
except ImportError:
    package, submodule = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    package.safe_open = lambda filename, framework: File(filename, framework)
    submodule._getdtype = DTYPES.__getitem__
    package.torch = submodule
    sys.modules.update({"safetensors": package, "safetensors.torch": submodule})

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: E402

passed = 0
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "checkpoint")
    subprocess.run([PROGRAM, path], check=True)
    dtypes = {"rows": torch.float32, "blocks": torch.bfloat16, "nested": torch.int64, "strided": torch.float64,
              "replicated": torch.float16, "plain": torch.int32}
    state = {name: torch.zeros(11, 7, dtype=dtype) for name, dtype in dtypes.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(path), no_dist=True)
    for name, t in state.items():
        assert torch.equal(t, torch.arange(77).view(11, 7).to(t.dtype)), (name, t)
        passed += 1

print(f"[dtensor] {passed} passed, 0 failed, 0 skipped")
