"""Optional: loads the library, and teaches Python what it asks of tensors beside operators.

    import dtensor_torch                       # DTENSOR_LIBRARY=/path/to/libdtensor.so, else the loader's search path
    torch.ops.dtensor.distribute(t, mesh, "RS(0)")
    # dtensor(float32[8, 4], RS(0), device='cpu')

    with dtensor_torch.mesh_scope(mesh):       # what factories make is replicated on the mesh
        model(ids)
    with dtensor_torch.implicit_replication(): # plain tensors beside distributed ones count as replicated
        y = x * torch.randn(4)

print(), copy.deepcopy(), torch.save() and torch.load() of distributed tensors work with it. Without it they raise, as they read
a storage that such a tensor does not have. Printing shows no values: that would communicate. Use
torch.ops.dtensor.full_tensor(t) or local_tensors(t).

A file has the parts of the ranks that the process owns, and the mesh's shape and names: every process saves a file of its own,
and loads it. torch.load() puts them on the mesh of that shape and these names that was made last, or on a new one of this
process: `with dtensor_torch.load_on(mesh)` says which. A checkpoint that other numbers of ranks can load is
dtensor::save_checkpoint() in C++.
"""

import contextlib
import copy
import os
import threading

import torch

torch.ops.load_library(os.environ.get("DTENSOR_LIBRARY", "libdtensor.so"))

_dt = torch.ops.dtensor


@contextlib.contextmanager
def _scope(kind, enter, *args):
    enter(*args)
    try:
        yield
    finally:
        _dt.leave_scope(kind)


def mesh_scope(mesh):
    """Factories (arange, zeros, randn, ...) make tensors that are replicated on the mesh. On a meta_mesh() all do, without data."""
    return _scope("mesh_scope", _dt.enter_mesh_scope, mesh)


def implicit_replication():
    """A plain tensor beside a distributed one counts as a value that all ranks hold, instead of being an error."""
    return _scope("implicit_replication", _dt.enter_implicit_replication)


def replicate_unsupported():
    """Operators without a sharding rule run on gathered inputs, counted as communication, instead of being an error."""
    return _scope("replicate_unsupported", _dt.enter_replicate_unsupported)


def delay_gradient_reduction():
    """backward() leaves gradients in the layout in which it computes them, Partial mostly, so that several backward passes add
    up without communication. Call torch.ops.dtensor.reduce_gradients(parameters) before the optimizer's step."""
    return _scope("delay_gradient_reduction", _dt.enter_delay_gradient_reduction)


# ---- printing ---------------------------------------------------------------------------------------------------------

_torch_repr = torch.Tensor.__repr__


def _repr(self, *, tensor_contents=None):
    if not _dt.is_dtensor(self):
        return _torch_repr(self, tensor_contents=tensor_contents)
    dtype = str(self.dtype).removeprefix("torch.")
    parts = [f"{dtype}{list(self.shape)}", _dt.placements(self), f"device='{self.device}'"]
    if self.grad_fn is not None:
        parts.append(f"grad_fn=<{self.grad_fn.name()}>")
    elif self.requires_grad:
        parts.append("requires_grad=True")
    return f"dtensor({', '.join(parts)})"


torch.Tensor.__repr__ = _repr

# ---- copying ----------------------------------------------------------------------------------------------------------

_torch_deepcopy = torch.Tensor.__deepcopy__


def _deepcopy(self, memo):
    if not _dt.is_dtensor(self):
        return _torch_deepcopy(self, memo)
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment: "
            "detach() the distributed tensor first"
        )
    result = self.detach().clone().requires_grad_(self.requires_grad)
    result.__dict__ = copy.deepcopy(self.__dict__, memo)
    memo[id(self)] = result
    if self.grad is not None:
        result.grad = copy.deepcopy(self.grad, memo)
    return result


torch.Tensor.__deepcopy__ = _deepcopy

# ---- files ------------------------------------------------------------------------------------------------------------

_loading = threading.local()


@contextlib.contextmanager
def load_on(mesh):
    """torch.load() puts distributed tensors on this mesh. It must have the shape that they were saved from."""
    before = getattr(_loading, "mesh", None)
    _loading.mesh = mesh
    try:
        yield
    finally:
        _loading.mesh = before


def _mesh_for(shape, names):
    mesh = getattr(_loading, "mesh", None)
    if mesh is not None:
        if list(_dt.mesh_shape(mesh)) != shape:
            raise ValueError(
                f"[load_on] the tensor was saved from a mesh of shape {shape}, mesh {mesh} is of shape "
                f"{list(_dt.mesh_shape(mesh))}: save full_tensor(t), or load a checkpoint of dtensor::save_checkpoint()"
            )
        return mesh
    for known in range(_dt.num_meshes(), 0, -1):
        if list(_dt.mesh_shape(known)) == shape and list(_dt.mesh_dim_names(known)) == names:
            return known
    return _dt.init_local_mesh(shape, names)


def _rebuild(parts, shape, mesh_shape, mesh_names, placements, requires_grad):
    mesh = _mesh_for(list(mesh_shape), list(mesh_names))
    with torch.no_grad():
        tensor = _dt.from_local(list(parts), mesh, placements, list(shape))
    return tensor.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([_rebuild])

_torch_reduce = torch.Tensor.__reduce_ex__


def _reduce(self, protocol):
    if not _dt.is_dtensor(self):
        return _torch_reduce(self, protocol)
    if self.is_meta:
        raise RuntimeError("a distributed tensor on the device 'meta' has no data to save: to_empty() and fill it first")
    mesh = _dt.mesh_of(self)
    parts = [part.detach() for part in _dt.local_tensors(self.detach())]
    state = (parts, list(self.shape), list(_dt.mesh_shape(mesh)), list(_dt.mesh_dim_names(mesh)))
    return _rebuild, (*state, _dt.placements(self), self.requires_grad)


torch.Tensor.__reduce_ex__ = _reduce
