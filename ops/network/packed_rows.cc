#include "ops/network/packed_rows.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <numeric>
#include <utility>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "placement/with_dim.h"

namespace dtensor::internal {
namespace {

using Ints = std::vector<int64_t>;

Ints indices_of(const IndexRanges& runs) {
  Ints result;
  for (const auto& run : runs) {
    for (int64_t i = 0; i < run.size; ++i) result.push_back(run.begin + i);
  }
  return result;
}

// Pairs of a source row and a destination row.
struct RowMap {
  Ints from, to;

  // Copies those rows of `source` to a new tensor of `rows` rows, which is 0 in the other rows of `used`, and `fill`
  // elsewhere.
  at::Tensor apply(const at::Tensor& source, int64_t rows, double fill, const Ints& used = {}) const {
    Ints sizes = source.sizes().vec();
    sizes[0] = rows;
    at::Tensor result = at::full(sizes, fill, source.options());
    if (result.numel() == 0) return result;
    const auto index = [&](const Ints& list) { return at::tensor(list, at::kLong).to(source.device()); };
    if (fill != 0 && from.size() < used.size()) result.index_fill_(0, index(used), 0);
    return from.empty() ? result : result.index_copy_(0, index(to), source.index_select(0, index(from)));
  }
};

int64_t total(const Ints& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

// For each existing pair of a rank's steps and sequences: fn(row among the rank's, step, sequence).
template <typename Fn>
void for_each_step(const Ints& sizes, const Ints& steps, const Ints& sequences, const Fn& fn) {
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i] >= static_cast<int64_t>(sizes.size())) continue;
    for (size_t j = 0; j < sequences.size(); ++j) {
      if (sequences[j] < sizes[steps[i]]) fn(static_cast<int64_t>(i * sequences.size() + j), steps[i], sequences[j]);
    }
  }
}

Ints first_rows(const Ints& sizes) {
  Ints result(sizes.size(), 0);
  for (size_t t = 1; t < sizes.size(); ++t) result[t] = result[t - 1] + sizes[t - 1];
  return result;
}

CommCause implicit_cause(const char* op, const char* argument, const at::Tensor& t) {
  return {op, argument, module_of_call(t), /*implicit=*/true};
}

// The layout in which the rows of `t` are moved: ranks that share dims below `first` have different rows, and give
// Partials. Kinds that cannot be added up are gathered.
struct RowMove {
  at::Tensor t;
  Placements result;
};

RowMove prepare(const at::Tensor& t, int64_t first, int64_t dims_more, const CommCause& cause) {
  Placements from = spec_of(t)->placements(), to = from;
  for (size_t m = 0; m < from.size(); ++m) {
    const Placement& p = from[m];
    const bool adds = p.is_partial() && !p.is_mask_partial() && is_linear(p.reduce_op());
    if (p.is_sharded() && p.dim() >= first) {
      to[m] = with_dim(p, p.dim() + dims_more);
    } else if (p.is_sharded() && t.scalar_type() != at::kBool) {
      to[m] = Partial();
    } else if (!adds) {
      from[m] = to[m] = Replicate();
    }
  }
  return {redistribute_below_autograd(t, from, cause), to};
}

// Whether this is the first rank along all mesh dims on which `placements` are sums: the rank whose padding counts.
bool counts_padding(const Placements& placements, c10::ArrayRef<int64_t> coordinate) {
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].is_partial() && placements[m].reduce_op() == ReduceOp::kSum && coordinate[m] != 0) return false;
  }
  return true;
}

}  // namespace

Ints numbers_of_rows(const at::Tensor& batch_sizes) {
  LocalGuard guard;
  const at::Tensor numbers =
      (is_dtensor(batch_sizes) ? meta_for_read(batch_sizes).locals.front() : batch_sizes).to(at::kLong).contiguous();
  TORCH_CHECK(numbers.is_cpu() && numbers.dim() == 1, "batch_sizes should be a 1-D tensor on the CPU, but is on ",
              numbers.device(), ", of shape ", numbers.sizes());
  return {numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel()};
}

at::Tensor lengths_of(const Ints& sizes) {
  Ints lengths(sizes.empty() ? 0 : static_cast<size_t>(sizes.front()), 0);
  for (const int64_t size : sizes) {
    for (int64_t b = 0; b < size; ++b) ++lengths[b];
  }
  LocalGuard guard;
  return at::tensor(lengths, at::kLong);
}

at::Tensor pack_rows(const at::Tensor& padded, const Ints& sizes) {
  const RowMove move = prepare(padded, 2, -1, implicit_cause("aten::_pack_padded_sequence", "input", padded));
  Ints shape = padded.sizes().slice(1).vec();
  shape[0] = total(sizes);
  const SpecPtr spec = Spec::get(spec_of(padded)->mesh(), move.result, shape, padded.scalar_type());
  const DTensorMeta& meta = meta_for_read(move.t);
  const Ints begin = first_rows(sizes);
  RankTensors locals;
  LocalGuard guard;
  for (size_t r = 0; r < meta.locals.size(); ++r) {
    const LocalLayout part = meta.spec->local_layout(static_cast<int64_t>(r));
    RowMap map;
    for_each_step(sizes, indices_of(part.dims[0]), indices_of(part.dims[1]), [&](int64_t row, int64_t t, int64_t b) {
      map.from.push_back(row);
      map.to.push_back(begin[t] + b);
    });
    locals.push_back(map.apply(meta.locals[r].flatten(0, 1), shape[0], 0));
  }
  return make_result(spec, std::move(locals));
}

at::Tensor pad_rows(const at::Tensor& data, const Ints& sizes, int64_t steps, double padding) {
  const RowMove move = prepare(data, 1, 1, implicit_cause("aten::_pad_packed_sequence", "data", data));
  Ints shape = data.sizes().vec();
  shape[0] = sizes.front();
  shape.insert(shape.begin(), steps);
  const DeviceMesh& mesh = spec_of(data)->mesh();
  const SpecPtr spec = Spec::get(mesh, move.result, shape, data.scalar_type());
  const DTensorMeta& meta = meta_for_read(move.t);
  Ints padded_row;  // of each row of the data
  for (size_t t = 0; t < sizes.size(); ++t) {
    for (int64_t b = 0; b < sizes[t]; ++b) padded_row.push_back(static_cast<int64_t>(t) * sizes.front() + b);
  }
  RankTensors locals;
  LocalGuard guard;
  for (size_t r = 0; r < meta.locals.size(); ++r) {
    RowMap map;
    for (const int64_t row : indices_of(meta.spec->local_layout(static_cast<int64_t>(r)).dims[0])) {
      map.from.push_back(static_cast<int64_t>(map.from.size()));
      map.to.push_back(padded_row[row]);
    }
    const bool counts = counts_padding(move.result, mesh.local_coordinate(static_cast<int64_t>(r)));
    const at::Tensor rows = map.apply(meta.locals[r], steps * sizes.front(), counts ? padding : 0, padded_row);
    locals.push_back(rows.unflatten(0, {steps, sizes.front()}));
  }
  return make_result(spec, std::move(locals));
}

at::Tensor pad_again(const at::Tensor& padded, const Ints& sizes, int64_t steps, double padding) {
  Ints shape = padded.sizes().vec();
  shape[0] = steps;
  const DTensorMeta& meta = meta_for_read(padded);
  const SpecPtr spec = Spec::get(meta.spec->mesh(), meta.spec->placements(), shape, padded.scalar_type());
  RankTensors locals;
  LocalGuard guard;
  for (size_t r = 0; r < meta.locals.size(); ++r) {
    const LocalLayout part = spec->local_layout(static_cast<int64_t>(r));
    const Ints sequences = indices_of(part.dims[1]);
    RowMap map;
    for_each_step(sizes, indices_of(part.dims[0]), sequences, [&](int64_t row, int64_t, int64_t) {
      map.from.push_back(row);
      map.to.push_back(row);
    });
    const int64_t own = static_cast<int64_t>(sequences.size());
    const at::Tensor rows = map.apply(meta.locals[r].flatten(0, 1), steps * own, padding);
    locals.push_back(rows.unflatten(0, {steps, own}));
  }
  return make_result(spec, std::move(locals));
}

}  // namespace dtensor::internal
