"""Optional: loads the library, and adds the Python functions on tensors that are not operators.

    import dtensor_torch                       # see _find_library() for where the library is looked for
    torch.ops.dtensor.distribute(t, mesh, "RS(0)")
    # dtensor(float32[8, 4], RS(0), device='cpu')

    with dtensor_torch.mesh_scope(mesh):       # what factories make is replicated on the mesh
        model(ids)
    with dtensor_torch.implicit_replication(): # plain tensors beside distributed ones count as replicated
        y = x * torch.randn(4)

print(), copy.deepcopy(), new_tensor(), new(), resize(), torch.save() and torch.load() of distributed tensors work with it. Without it they raise, as they read
a storage that such a tensor does not have. Printing shows no values: that would communicate. Use
torch.ops.dtensor.full_tensor(t) or local_tensors(t).

A file has the parts of the ranks that the process owns, and the mesh's shape and names: every process saves a file of its own,
and loads it. torch.load() puts them on the mesh of that shape and these names that was made last, or on a new one of this
process: `with dtensor_torch.load_on(mesh)` says which. Checkpoints that other numbers of ranks and other layouts can load are
those of torch.distributed.checkpoint, which works on distributed tensors, and of dtensor::save_checkpoint() in C++.
"""

import contextlib
import copy
import functools
import numbers
import os
import re
import threading
from multiprocessing.reduction import ForkingPickler

import torch

# ---- loading ----------------------------------------------------------------------------------------------------------


def _find_library():
    """DTENSOR_LIBRARY; else the file next to this one (a wheel) or in lib/ of the prefix; else the loader's search path."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = [os.path.join(here, "libdtensor.so"), os.path.normpath(os.path.join(here, "../../../lib/libdtensor.so"))]
    return os.environ.get("DTENSOR_LIBRARY") or next(filter(os.path.isfile, beside), "libdtensor.so")


def _check_release(library):
    """With another LibTorch the loader would report undefined symbols, or nothing. The file has the release of its build."""
    if not os.path.isfile(library):
        return  # the loader says so, or finds it elsewhere; then the library itself compares
    with open(library, "rb") as f:
        found = re.search(rb"dtensor built with LibTorch (\d+\.\d+)", f.read())
    needed, running = found and found.group(1).decode(), ".".join(torch.__version__.split(".")[:2])
    if found and needed != running:
        raise ImportError(
            f"{library} was built with LibTorch {needed}, and this is torch {torch.__version__}: "
            f"pip install 'torch=={needed}.*', or build dtensor with LibTorch {running}"
        )


_library = _find_library()
_check_release(_library)
torch.ops.load_library(_library)

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
    """A plain tensor next to a distributed one counts as a value that all ranks hold, instead of being an error."""
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

# ---- constants of the kind of a tensor, such as nn.init.trunc_normal_() makes ------------------------------------------

_torch_new_tensor = torch.Tensor.new_tensor


def _new_tensor(self, data, *, dtype=None, device=None, requires_grad=False, **kwargs):
    """A replicated tensor, of which `data` must be the same on all ranks; distributed `data` keeps its layout. Plain on a device that
    is not the mesh's."""
    if not _dt.is_dtensor(self):
        return _torch_new_tensor(self, data, dtype=dtype, device=device, requires_grad=requires_grad, **kwargs)
    dtype = self.dtype if dtype is None else dtype
    device = self.device if device is None else torch.device(device)
    if isinstance(data, torch.Tensor) and _dt.is_dtensor(data):
        if kwargs:
            raise TypeError(f"[new_tensor] {', '.join(kwargs)} cannot be given for distributed data")
        result = data.detach().to(device=device, dtype=dtype, copy=True)
    else:
        result = torch.tensor(data, dtype=dtype, device=device, **kwargs)
        if device.type == self.device.type:
            mesh = _dt.mesh_of(self)
            result = _dt.distribute(result, mesh, "R" * len(_dt.mesh_shape(mesh)))
    return result.requires_grad_(requires_grad)


torch.Tensor.new_tensor = _new_tensor

_torch_new = torch.Tensor.new


def _new(self, *args, **kwargs):
    """The deprecated one, on which resize() and resize_as() build: new_empty() of sizes, new_tensor() of numbers, and another
    handle of a tensor."""
    if not _dt.is_dtensor(self):
        return _torch_new(self, *args, **kwargs)
    first = args[0] if args else 0
    if isinstance(first, torch.Tensor) and _dt.is_dtensor(first):
        if first.dtype != self.dtype:
            raise TypeError(f"[new] the tensor is of {first.dtype}, and new() was called on one of {self.dtype}")
        return first.detach()
    if isinstance(first, (numbers.Integral, torch.Size)):
        return self.new_empty(first if isinstance(first, torch.Size) else args or (0,), **kwargs)
    return _new_tensor(self, first, **kwargs)


torch.Tensor.new = _new

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
                f"{list(_dt.mesh_shape(mesh))}: save full_tensor(t), or use torch.distributed.checkpoint"
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

# ---- queues and pipes of torch.multiprocessing ------------------------------------------------------------------------

_torch_share = torch.multiprocessing.reductions.reduce_tensor


def _share(tensor):
    """Pickled as in a file; the local tensors go through shared memory, like plain ones."""
    return tensor.__reduce_ex__(2) if _dt.is_dtensor(tensor) else _torch_share(tensor)


for _kind in (torch.Tensor, torch.nn.Parameter):
    ForkingPickler.register(_kind, _share)

# ---- torch.distributed.checkpoint -------------------------------------------------------------------------------------
# Its protocol: which process writes which box of the whole tensor, which one reads it, and its location. Tensors of PyTorch's own
# DTensor class have methods of these names; of ours a plain torch.Tensor must not have them.


class _OfDistributedTensors:
    def __init__(self, function):
        self._function = function

    def __get__(self, tensor, owner=None):
        if tensor is None:
            return self._function  # torch.compile reads all attributes of the class
        if not _dt.is_dtensor(tensor):
            raise AttributeError(self._function.__name__)
        return functools.partial(self._function, tensor)


def _boxes(tensor):
    """For every box that this process holds: (position of its rank, offsets, sizes, offsets in the rank's part)."""
    numbers, dims = _dt.part_boxes(tensor), tensor.dim()
    size = 1 + 3 * dims
    for i in range(0, len(numbers), size):
        box = numbers[i : i + size]
        yield box[0], tuple(box[1 : 1 + dims]), tuple(box[1 + dims : 1 + 2 * dims]), tuple(box[1 + 2 * dims :])


def _chunk(offsets, sizes):
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))


def _create_write_items(tensor, fqn, _):
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    properties = TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad)
    once = {offsets: sizes for _, offsets, sizes, _ in _boxes(tensor)}
    return [
        WriteItem(
            index=MetadataIndex(fqn, torch.Size(offsets)),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=_chunk(offsets, sizes), properties=properties, size=tensor.size()),
        )
        for offsets, sizes in once.items()
    ]


def _create_chunk_list(tensor):
    _dt.note_load(tensor)
    return [_chunk(offsets, sizes) for _, offsets, sizes, _ in _boxes(tensor)]


def _get_tensor_shard(tensor, index):
    boxes = list(_boxes(tensor))
    # A load asks for each copy by its position in the list above. A save asks by offset, with a position of its own.
    found = [box for box in boxes if box[1] == tuple(index.offset)]
    if index.index is not None and index.index < len(boxes) and boxes[index.index] in found:
        found = [boxes[index.index]]
    if not found:
        raise ValueError(f"[torch.distributed.checkpoint] no part of '{index.fqn}' here begins at {tuple(index.offset)}")
    position, _, sizes, begins = found[0]
    part = _dt.part_memory(tensor)[position]
    for dim, (begin, size) in enumerate(zip(begins, sizes)):
        part = part.narrow(dim, begin, size)
    return part


torch.Tensor.__create_write_items__ = _OfDistributedTensors(_create_write_items)
torch.Tensor.__create_chunk_list__ = _OfDistributedTensors(_create_chunk_list)
torch.Tensor.__get_tensor_shard__ = _OfDistributedTensors(_get_tensor_shard)
