"""Optional: loads the library and lets Python print distributed tensors.

    import dtensor_torch                       # DTENSOR_LIBRARY=/path/to/libdtensor.so, else the loader's search path
    torch.ops.dtensor.distribute(t, mesh, "RS(0)")
    # dtensor(float32[8, 4], RS(0), device='cpu')

Without it repr() of a distributed tensor raises, as printing reads a storage that such a tensor does not have. Values are
not shown: that would communicate. Use torch.ops.dtensor.full_tensor(t) or local_tensors(t).
"""

import os

import torch

torch.ops.load_library(os.environ.get("DTENSOR_LIBRARY", "libdtensor.so"))

_torch_repr = torch.Tensor.__repr__


def _repr(self, *, tensor_contents=None):
    if not torch.ops.dtensor.is_dtensor(self):
        return _torch_repr(self, tensor_contents=tensor_contents)
    dtype = str(self.dtype).removeprefix("torch.")
    parts = [f"{dtype}{list(self.shape)}", torch.ops.dtensor.placements(self), f"device='{self.device}'"]
    if self.grad_fn is not None:
        parts.append(f"grad_fn=<{self.grad_fn.name()}>")
    elif self.requires_grad:
        parts.append("requires_grad=True")
    return f"dtensor({', '.join(parts)})"


torch.Tensor.__repr__ = _repr
