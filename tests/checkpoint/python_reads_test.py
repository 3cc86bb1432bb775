"""Python's torch.load reads, with weights_only, what dtensor::save wrote: every dtype, byte for byte."""

import os
import subprocess
import tempfile
import warnings

import torch

warnings.simplefilter("ignore")
PROGRAM = "tests/checkpoint/python_reads_program"
passed = 0

with tempfile.TemporaryDirectory() as folder:
    count = int(subprocess.run([PROGRAM, folder], check=True, capture_output=True, text=True).stdout)
    tensors = torch.load(os.path.join(folder, "dtypes.pt"), weights_only=True)
    assert len(tensors) == count == 22, (len(tensors), count)
    dtypes = {t.dtype for t in tensors.values()}
    assert len(dtypes) == count, dtypes
    for dtype in (torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.uint64, torch.complex32, torch.bfloat16):
        assert dtype in dtypes, dtype
    for name, t in tensors.items():
        assert t.shape == (2, 3) and t.is_contiguous(), name
        data = bytes(t.untyped_storage().tolist())
        expected = bytes(b % 2 if t.dtype == torch.bool else b + 1 for b in range(len(data)))
        assert data == expected and len(data) == 6 * t.element_size(), name
    passed += 1

    state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
    model = torch.nn.Linear(3, 2)
    model.load_state_dict(state)
    script = torch.jit.load(os.path.join(folder, "module.pt"))
    assert torch.equal(script.weight, model.weight) and torch.equal(script.bias, model.bias)
    passed += 1

print(f"[dtensor] {passed} passed, 0 failed, 0 skipped")
