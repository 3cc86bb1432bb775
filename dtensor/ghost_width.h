// Declares how far stencils reach, as the stencil width of PETSc's DMDA: one exchange then fetches the elements that
// ranks lack for all slices of a tensor, and one those for all its rolls, padding, convolutions, pooling and the like.
//
//   at::Tensor u = zeros({256, 256}, mesh, {Shard(0), Shard(1)});
//   set_ghost_width(u, {1, 1});  // each element reads its neighbours one row and one column away
//   auto inside = [&](int64_t row, int64_t column) { return u.narrow(0, row, 254).narrow(1, column, 254); };
//   inside(1, 1).copy_((inside(0, 1) + inside(2, 1) + inside(1, 0) + inside(1, 2)) / 4);
//
// ops/halo/declared_region.cc fetches the ghost regions, which the cache of the tensor keeps
// (layout_cache/ghost_region.h). docs/halos.md has examples.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor {

// Declares that slices of `t` leave out up to 2 * width[d] indices of dim d, at both ends together; one value per dim.
// After each write to `t`, the first of these slices that needs elements of other ranks fetches the ghost region of all
// of them, along all sharded dims, in one exchange. The others move nothing until the next write, nor do slices with a
// step whose elements lie in the region. A write through a slice updates the region in the exchange that it makes, if
// the region was read since the last write, and that takes at most twice as long; else the next read fetches it.
// Without a width, each slice is an exchange of its own, when an operator reads it.
//
// The other operators that need elements beyond a rank's part read a second, periodic region: width[d] elements on each
// side along each sharded dim d, around the ends of the dims. These are roll(), flip(), padding, convolution, pooling,
// unfold() and upsampling. The first such call after a write that finds what it lacks in this region fetches all of it,
// in one exchange; the others move nothing until the next write. A call that lacks other elements is an exchange of its
// own. Padding fetches the region for the slices of the padded tensor, which usually follow, also if none does.
//
// {} or zeros withdraw the declaration. It belongs to the tensor: handles and aliases of the same sizes, dtype and
// offset have it, writes keep it, and a clone() gets it; results of other operators have none, so that a loop over
// `u = step(u)` declares it again in each step. Slices of slices of `t` count as slices of `t`. Never communicates. All
// ranks call it alike, as it decides what is communicated.
//
// It has no effect in inference mode; if a rank has no part of `t` or several pieces; and if a part with its ghost
// region exceeds the limit of remembered bytes (remembered_layouts.h), or the exchange, or a call's part, region and
// box together, a RedistributeMemoryLimit.
//
// Errors: a plain tensor (TypeError); a number of values other than t.dim(), a negative value, one above
// (t.size(d) - 1) / 2, with which slices would be empty, or local tensors that the program may write to (from_local(),
// mutable_local_tensors()), of which nothing is cached (ValueError); a complex tensor (NotImplementedError).
void set_ghost_width(const at::Tensor& t, at::IntArrayRef width);

// The declared width; empty without one. Error (TypeError): a plain tensor.
std::vector<int64_t> ghost_width(const at::Tensor& t);

}  // namespace dtensor
