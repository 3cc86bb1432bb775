#include "ops/reduction/sample_sort.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mode.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "dtensor/redistribute_parts.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/rank_summaries.h"

namespace dtensor::internal {
namespace {

// Integers in the order of the values: nan last, as in ATen, or first if `descending`; 0 and -0 are equal.
at::Tensor order_keys(const at::Tensor& values, bool descending) {
  at::Tensor keys;
  if (values.is_floating_point()) {
    const at::Tensor v = values.to(at::kDouble) + 0.0;  // no -0
    const at::Tensor bits = v.view(at::kLong);
    keys = at::where(bits < 0, at::bitwise_and(bits, std::numeric_limits<int64_t>::max()).bitwise_not(), bits);
    keys = at::where(v.isnan(), std::numeric_limits<int64_t>::max(), keys);
  } else {
    keys = values.to(at::kLong);
  }
  return descending ? keys.bitwise_not() : keys;
}

// One rank's elements in order: their keys, values, and global indices.
struct Sorted {
  at::Tensor keys, values, indices;
};

Sorted in_order(const at::Tensor& values, const at::Tensor& indices, bool descending) {
  auto [keys, places] = at::sort(order_keys(values, descending), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  return {keys, values.index_select(0, places), indices.index_select(0, places)};
}

// The elements as rows of bytes, so that values and indices are sent together; and back.
at::Tensor packed(const Sorted& s) {
  return at::cat({s.values.contiguous().unsqueeze(1).view(at::kByte), s.indices.unsqueeze(1).view(at::kByte)}, 1);
}
std::pair<at::Tensor, at::Tensor> unpacked(const at::Tensor& rows, c10::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const auto column = [&](int64_t begin, int64_t bytes, c10::ScalarType as) {
    return rows.narrow(1, begin, bytes).contiguous().view(as).select(1, 0);
  };
  return {column(0, element, dtype), column(element, 8, at::kLong)};
}

// A vector that is split over ranks in chunks, with the state of the sort.
struct SplitSort {
  SplitSort(const c10::OperatorHandle& op, const at::Tensor& self, bool descending)
      : self(self), spec(*spec_of(self)), descending(descending), cause(call_cause(op, "self", self)) {}

  const at::Tensor self;
  const Spec& spec;
  const bool descending;
  const CommCause cause;
  std::vector<Sorted> own;       // of each rank of this process
  std::vector<int64_t> begins;   // of the parts that have elements
  std::vector<int64_t> lengths;  // of these

  int64_t row_bytes() const { return static_cast<int64_t>(self.element_size()) + 8; }
};

// Concatenates the numbers of every part with elements, in this process's memory.
std::vector<std::vector<int64_t>> gathered_numbers(
    const SplitSort& sort, int64_t tensors, const std::function<int64_t(const LocalLayout&)>& count,
    const std::function<std::vector<at::Tensor>(const LocalLayout&)>& numbers) {
  SummaryRequest request;
  request.dims = {0};
  request.dtypes.assign(static_cast<size_t>(tensors), at::kLong);
  request.count = count;
  request.summarize = [&](const at::Tensor&, const LocalLayout& part, int64_t width) {
    std::vector<at::Tensor> padded = numbers(part);
    for (at::Tensor& t : padded) t = at::cat({t, at::zeros({width - t.size(0)}, t.options())});
    return padded;
  };
  const Summaries all = gather_summaries(sort.self, request, sort.cause);
  std::vector<std::vector<int64_t>> result;
  LocalGuard guard;
  for (const at::Tensor& t : all.tensors) {
    const at::Tensor here = meta_for_read(t).locals[0].cpu().contiguous();
    result.emplace_back(here.const_data_ptr<int64_t>(), here.const_data_ptr<int64_t>() + here.numel());
  }
  return result;
}

const Sorted& sorted_of(const SplitSort& sort, const LocalLayout& part) {
  for (size_t i = 0; i < sort.own.size(); ++i) {
    if (sort.spec.local_layout(static_cast<int64_t>(i)).dims[0] == part.dims[0]) return sort.own[i];
  }
  TORCH_INTERNAL_ASSERT(false);
}

// Where every part is cut: row r has, of part r, the number of elements before each bucket. `equal_together`: equal
// elements go to one bucket; else ties are broken by index, so that buckets are even.
std::vector<std::vector<int64_t>> cuts_of(const SplitSort& sort, bool equal_together) {
  const auto n = static_cast<int64_t>(sort.begins.size());
  const auto samples = gathered_numbers(
      sort, 2, [](const LocalLayout& part) { return std::min(total_size(part.dims[0]), kSamplesPerRank); },
      [&](const LocalLayout& part) {
        const Sorted& own = sorted_of(sort, part);
        const int64_t length = own.keys.size(0), count = std::min(length, kSamplesPerRank);
        const at::Tensor places = at::arange(count, own.keys.options()).mul(length).floor_divide(count);
        return std::vector<at::Tensor>{own.keys.index_select(0, places), own.indices.index_select(0, places)};
      });
  std::vector<std::pair<int64_t, int64_t>> sorted;  // key, index
  for (size_t i = 0; i < samples[0].size(); ++i)
    sorted.emplace_back(samples[0][i], equal_together ? std::numeric_limits<int64_t>::min() : samples[1][i]);
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> keys, indices;
  for (int64_t b = 1; b < n; ++b) {
    const auto [key, index] = sorted[sorted.size() * static_cast<size_t>(b) / static_cast<size_t>(n)];
    keys.push_back(key), indices.push_back(index);
  }

  const auto bounds = gathered_numbers(
      sort, 1, [&](const LocalLayout&) { return n - 1; },
      [&](const LocalLayout& part) {
        const Sorted& own = sorted_of(sort, part);
        const at::Tensor splitters = at::tensor(keys, own.keys.options());
        const at::Tensor lower = at::searchsorted(own.keys, splitters),
                         upper = at::searchsorted(own.keys, splitters, /*out_int32=*/false, /*right=*/true);
        at::Tensor bound = lower.cpu();
        const at::Tensor end = upper.cpu();
        for (int64_t b = 0; b + 1 < n; ++b) {  // among equal ones, those of smaller indices
          const int64_t from = bound[b].item<int64_t>(), to = end[b].item<int64_t>();
          if (from == to || indices[static_cast<size_t>(b)] < 0) continue;
          bound[b] += own.indices.narrow(0, from, to - from).lt(indices[static_cast<size_t>(b)]).sum().item<int64_t>();
        }
        return std::vector<at::Tensor>{bound.to(own.keys.device())};
      })[0];
  std::vector<std::vector<int64_t>> result;
  for (int64_t r = 0; r < n; ++r) {
    std::vector<int64_t> row = {0};
    row.insert(row.end(), bounds.begin() + r * (n - 1), bounds.begin() + (r + 1) * (n - 1));
    row.push_back(sort.lengths[static_cast<size_t>(r)]);
    result.push_back(std::move(row));
  }
  return result;
}

// Consecutive elements that a rank has or gets, in the order of some layout.
struct Place {
  int64_t rank = 0, copy = 0;  // of the vector: there is one copy per index of the mesh dims that do not cut it
  int64_t begin = 0, count = 0;
};

Layout layout_of(const SplitSort& sort, const std::vector<Place>& places) {
  std::vector<RankBox> boxes;
  for (const Place& p : places) {
    if (p.count > 0) boxes.push_back({p.rank, {p.copy, p.begin, 0}, {1, p.count, sort.row_bytes()}});
  }
  return {sort.spec.mesh().world(), std::move(boxes)};
}

// Rows of bytes, one tensor per mesh.local_ranks() in and out.
std::vector<at::Tensor> moved(const SplitSort& sort, const std::vector<at::Tensor>& rows,
                              const std::vector<Place>& from, const std::vector<Place>& to) {
  const DeviceMesh& mesh = sort.spec.mesh();
  const auto& owned = mesh.world().owned_ranks();
  const auto slot = [&](size_t i) {
    return std::find(owned.begin(), owned.end(), mesh.local_ranks()[i]) - owned.begin();
  };
  RankPieces pieces(owned.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size(0) > 0) pieces[slot(i)] = {rows[i].unsqueeze(0)};
  }
  int64_t copies = 1;
  for (const Place& p : from) copies = std::max(copies, p.copy + 1);
  c10::AutoGradMode no_grad(false);
  pieces = redistribute_parts(pieces, {copies, sort.self.size(0), sort.row_bytes()}, at::kByte, layout_of(sort, from),
                              layout_of(sort, to), {.function = sort.cause.op});
  LocalGuard guard;
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& own = pieces[slot(i)];
    result.push_back(own.empty() ? rows[i].narrow(0, 0, 0) : at::cat(own, 1).squeeze(0));
  }
  return result;
}

struct Buckets {
  std::vector<Sorted> own;             // of each rank of this process, in order
  std::vector<Place> chunks, buckets;  // of all ranks, in the vector and in the sorted one
};

Buckets in_buckets(SplitSort& sort, bool equal_together) {
  const Spec& spec = sort.spec;
  const DeviceMesh& mesh = spec.mesh();
  Buckets result;
  std::map<std::vector<int64_t>, int64_t> copies;  // by coordinates, except the one that cuts
  for (const int64_t rank : mesh.ranks()) {
    std::vector<int64_t> coordinate = mesh.coordinate(rank);
    const LocalLayout part = local_layout(spec.sizes(), mesh.shape(), spec.placements(), coordinate);
    for (size_t d = 0; d < coordinate.size(); ++d) {
      if (spec.placements()[d].is_sharded()) coordinate[d] = 0;
    }
    const int64_t copy = copies.emplace(coordinate, static_cast<int64_t>(copies.size())).first->second;
    if (part.empty()) continue;
    result.chunks.push_back({rank, copy, part.dims[0][0].begin, part.dims[0][0].size});
    if (copy > 0) continue;
    sort.begins.push_back(result.chunks.back().begin), sort.lengths.push_back(result.chunks.back().count);
  }

  const RankTensors& locals = meta_for_read(sort.self).locals;
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < locals.size(); ++i) {
    LocalGuard guard;
    const LocalLayout part = spec.local_layout(static_cast<int64_t>(i));
    const int64_t begin = part.empty() ? 0 : part.dims[0][0].begin;
    const at::Tensor indices =
        at::arange(begin, begin + locals[i].size(0), at::TensorOptions(at::kLong).device(locals[i].device()));
    sort.own.push_back(in_order(locals[i], indices, sort.descending));
    rows.push_back(packed(sort.own.back()));
  }

  const auto cut = cuts_of(sort, equal_together);
  const auto n = static_cast<int64_t>(sort.begins.size());
  std::vector<int64_t> before(static_cast<size_t>(n) + 1, 0);  // each bucket
  for (int64_t b = 0; b < n; ++b) {
    before[b + 1] = before[b];
    for (int64_t r = 0; r < n; ++r) before[b + 1] += cut[r][b + 1] - cut[r][b];
  }
  std::vector<Place> wanted;
  for (const Place& chunk : result.chunks) {
    const int64_t b = std::lower_bound(sort.begins.begin(), sort.begins.end(), chunk.begin) - sort.begins.begin();
    for (int64_t r = 0; r < n; ++r)
      wanted.push_back({chunk.rank, chunk.copy, sort.begins[r] + cut[r][b], cut[r][b + 1] - cut[r][b]});
    result.buckets.push_back({chunk.rank, chunk.copy, before[b], before[b + 1] - before[b]});
  }
  for (const at::Tensor& bucket : moved(sort, rows, result.chunks, wanted)) {
    LocalGuard guard;
    const auto [values, indices] = unpacked(bucket, sort.self.scalar_type());
    result.own.push_back(in_order(values, indices, sort.descending));
  }
  return result;
}

}  // namespace

ValuesAndIndices sorted_vector(const c10::OperatorHandle& op, const at::Tensor& self, bool descending) {
  SplitSort sort(op, self, descending);
  const Buckets buckets = in_buckets(sort, /*equal_together=*/false);
  std::vector<at::Tensor> rows;
  RankTensors values, indices;
  {
    LocalGuard guard;
    for (const Sorted& own : buckets.own) rows.push_back(packed(own));
  }
  for (const at::Tensor& chunk : moved(sort, rows, buckets.buckets, buckets.chunks)) {
    LocalGuard guard;
    const auto [v, i] = unpacked(chunk, self.scalar_type());
    values.push_back(v), indices.push_back(i);
  }
  const DeviceMesh& mesh = sort.spec.mesh();
  const Placements& placements = sort.spec.placements();
  return {make_dtensor(Spec::get(mesh, placements, self.sizes(), self.scalar_type()), std::move(values)),
          make_dtensor(Spec::get(mesh, placements, self.sizes(), at::kLong), std::move(indices))};
}

// Every bucket proposes its most frequent value.
ValuesAndIndices mode_of_vector(const c10::OperatorHandle& op, const at::Tensor& self) {
  SplitSort sort(op, self, /*descending=*/false);
  const Buckets buckets = in_buckets(sort, /*equal_together=*/true);
  SummaryRequest request;
  request.dims = {0};
  request.dtypes = {self.scalar_type(), at::kLong, at::kLong};
  request.count = [](const LocalLayout& part) { return part.empty() ? 0 : 1; };
  request.summarize = [&](const at::Tensor& local, const LocalLayout& part, int64_t) {
    size_t i = 0;
    while (sort.spec.local_layout(static_cast<int64_t>(i)).dims[0] != part.dims[0]) ++i;
    const Sorted& own = buckets.own[i];
    const auto number = own.indices.options();
    if (own.keys.numel() == 0)
      return std::vector<at::Tensor>{at::zeros({1}, local.options()), at::zeros({1}, number), at::zeros({1}, number)};
    const auto [key, place] = at::mode(own.keys, 0);
    return std::vector<at::Tensor>{own.values.index_select(0, place.view({1})), own.keys.eq(key).sum().view({1}),
                                   own.indices.index_select(0, place.view({1}))};
  };
  const Summaries all = gather_summaries(self, request, sort.cause);  // buckets ascend: the first is the smallest
  const at::Tensor best = std::get<1>(all.tensors[1].max(0, /*keepdim=*/true));
  return {all.tensors[0].gather(0, best).squeeze(0), all.tensors[2].gather(0, best).squeeze(0)};
}

}  // namespace dtensor::internal
