#include "dtensor/redistribution/internal/plain_call.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dtensor/redistribution/internal/check_parts.h"
#include "dtensor/redistribution/redistribute_autograd.h"

namespace dtensor::internal {
namespace {

// The sizes of the parts of a dim of size `whole`, one per position: `sizes`, or if empty equal ones.
std::vector<int64_t> sizes_of_parts(const PlainCall& call, const char* name, int64_t whole, c10::IntArrayRef sizes) {
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(whole % call.size() == 0, "[", call.function(), "] a dim of size ", whole,
                      " has no equal parts for ", call.size(), " ranks along '", call.mesh_dim, "': give ", name);
    return std::vector<int64_t>(call.size(), whole / call.size());
  }
  TORCH_CHECK_VALUE(static_cast<int64_t>(sizes.size()) == call.size(), "[", call.function(), "] ", name, " is ", sizes,
                    "; give one per position along '", call.mesh_dim, "' of ", call.mesh.to_string(), ", ",
                    call.size());
  TORCH_CHECK_VALUE(std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n >= 0; }) &&
                        std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == whole,
                    "[", call.function(), "] ", name, " is ", sizes, "; sizes of the parts must add up to ", whole);
  return sizes.vec();
}

// A dim of all tensors, counted from the first.
int64_t checked_dim(const PlainCall& call, const RankTensors& tensors, const char* name, int64_t dim) {
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK_VALUE(!t.defined() || (dim >= -t.dim() && dim < t.dim()), "[", call.function(), "] ", name, " is ", dim,
                      ", and a tensor has the shape ", t.sizes());
    TORCH_CHECK_VALUE(dim >= 0 || !t.defined() || !tensors[0].defined() || t.dim() == tensors[0].dim(), "[",
                      call.function(), "] ", name, " is ", dim, ", and tensors have ", tensors[0].dim(), " and ",
                      t.dim(), " dims: count the dim from the first");
  }
  return dim < 0 && !tensors.empty() && tensors[0].defined() ? dim + tensors[0].dim() : dim;
}

}  // namespace

PlainCall plain_call(const char* function, const DeviceMesh& mesh, std::string_view mesh_dim) {
  TORCH_CHECK_VALUE(mesh.defined(), "[", function, "] no mesh");
  mesh.dim(mesh_dim);  // throws if there is none
  return {mesh, std::string(mesh_dim), explicit_cause(function)};
}

void check_position(const PlainCall& call, const char* name, int64_t position) {
  TORCH_CHECK_VALUE(position >= 0 && position < call.size(), "[", call.function(), "] ", name, " is ", position,
                    "; it must be a position along '", call.mesh_dim, "' of ", call.mesh.to_string(), ", 0..",
                    call.size() - 1);
}

void check_tensors(const PlainCall& call, const RankTensors& tensors, int64_t uneven_dim) {
  const auto& ranks = call.mesh.local_ranks();
  TORCH_CHECK_VALUE(tensors.size() == ranks.size(), "[", call.function(), "] ", tensors.size(),
                    " tensors, and this process owns ", ranks.size(), " ranks of ", call.mesh.to_string(),
                    ": give one per rank of mesh.local_ranks()");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string error = error_of_part(tensors[i], ranks[i], call.mesh);
    TORCH_CHECK_TYPE(error.empty(), "[", call.function(), "] ", error);
  }
  const auto compared = [&](const at::Tensor& t) {
    std::vector<int64_t> sizes = t.sizes().vec();
    if (uneven_dim >= 0 && uneven_dim < t.dim()) sizes[uneven_dim] = 0;
    return sizes;
  };
  std::vector<int64_t> first(call.group().members.size(), -1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t& other = first[call.group().group_of[ranks[i]]];
    if (other < 0) other = static_cast<int64_t>(i);
    const at::Tensor &a = tensors[other], &b = tensors[i];
    TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type() && compared(a) == compared(b), "[", call.function(),
                      "] ranks ", ranks[other], " and ", ranks[i], " along '", call.mesh_dim, "' pass ",
                      a.scalar_type(), a.sizes(), " and ", b.scalar_type(), b.sizes(),
                      "; dtypes and sizes must be equal", uneven_dim < 0 ? "" : c10::str(" but in dim ", uneven_dim));
  }
}

int64_t start_of(const std::vector<int64_t>& sizes, int64_t position) {
  return std::accumulate(sizes.begin(), sizes.begin() + position, int64_t{0});
}

int64_t Concatenation::most_lacking(size_t i) const {
  return whole(i) - *std::min_element(sizes[i].begin(), sizes[i].end());
}

Concatenation checked_parts(const PlainCall& call, const RankTensors& tensors, int64_t gather_dim,
                            c10::IntArrayRef sizes) {
  const int64_t dim = checked_dim(call, tensors, "gather_dim", gather_dim);
  check_tensors(call, tensors, sizes.empty() ? -1 : dim);
  Concatenation all{dim, {}};
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t own = tensors[i].size(dim);
    all.sizes.push_back(sizes_of_parts(call, "sizes", sizes.empty() ? own * call.size() : sum, sizes));
    TORCH_CHECK_VALUE(own == all.sizes[i][call.position(i)], "[", call.function(), "] sizes is ", sizes, ", and rank ",
                      call.mesh.local_ranks()[i], " at position ", call.position(i), " passes a tensor of shape ",
                      tensors[i].sizes(), "; gather_dim is ", dim);
  }
  return all;
}

Concatenation checked_whole(const PlainCall& call, const RankTensors& tensors, int64_t scatter_dim,
                            c10::IntArrayRef sizes) {
  const int64_t dim = checked_dim(call, tensors, "scatter_dim", scatter_dim);
  check_tensors(call, tensors);
  Concatenation all{dim, {}};
  for (const at::Tensor& t : tensors) all.sizes.push_back(sizes_of_parts(call, "sizes", t.size(dim), sizes));
  return all;
}

std::vector<std::vector<int64_t>> checked_splits(const PlainCall& call, const char* name,
                                                 const std::vector<std::vector<int64_t>>& splits,
                                                 const RankTensors& tensors, bool of_input) {
  const auto& ranks = call.mesh.local_ranks();
  TORCH_CHECK_VALUE(splits.empty() || splits.size() == ranks.size(), "[", call.function(), "] ", name, " has ",
                    splits.size(), " lists; give one per rank of mesh.local_ranks(), ", ranks.size());
  std::vector<std::vector<int64_t>> checked;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK_VALUE(tensors[i].dim() > 0, "[", call.function(), "] the tensor of rank ", ranks[i],
                      " has no dims; a tensor is split along its first");
    const std::vector<int64_t> given = splits.empty() ? std::vector<int64_t>() : splits[i];
    TORCH_CHECK_VALUE(splits.empty() || !given.empty(), "[", call.function(), "] ", name, " of rank ", ranks[i],
                      " is empty; give one size per position, ", call.size());
    const bool sum_is_known = of_input || splits.empty();
    const int64_t whole = sum_is_known ? tensors[i].size(0) : std::accumulate(given.begin(), given.end(), int64_t{0});
    checked.push_back(sizes_of_parts(call, name, whole, given));
  }
  return checked;
}

CommCall comm_call(const PlainCall& call, const RankTensors& tensors, int64_t bytes) {
  CommCall comm;
  comm.group = &call.group();
  comm.ranks = call.mesh.local_ranks();
  comm.event.cause = call.cause;
  comm.event.bytes = bytes;
  if (!tensors.empty()) comm.event.dtype = tensors[0].scalar_type();
  return comm;
}

}  // namespace dtensor::internal
