#include "dtensor/tensor/view_window.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor::internal {
namespace {

// Dims of more than one element, largest stride first.
std::vector<size_t> dims_by_stride(const Window& w) {
  std::vector<size_t> order;
  for (size_t d = 0; d < w.sizes.size(); ++d) {
    if (w.sizes[d] > 1 && w.strides[d] > 0) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return w.strides[a] > w.strides[b]; });
  return order;
}

bool is_expanded(const Window& w, size_t d) { return w.sizes[d] > 1 && w.strides[d] == 0; }

// ------------------------------------------------------------ one dtype

// Reinterprets each element as `ratio` smaller ones: the last dim counts them.
void split_window(Window& w, int64_t ratio) {
  if (ratio == 1) return;
  for (int64_t& stride : w.strides) stride *= ratio;
  w.offset *= ratio;
  w.sizes.push_back(ratio);
  w.strides.push_back(1);
}

// Reinterprets each element as `ratio` elements of `dtype`: the last dim counts them.
void split_elements(WindowPart& w, c10::ScalarType dtype, int64_t ratio) {
  if (w.part.scalar_type() == dtype) return;
  split_window(w.window, ratio);
  if (ratio == 1) {
    w.part = w.part.view(dtype);
    return;
  }
  w.layout.dims.push_back({{0, ratio}});
  w.layout.offsets.push_back(0);
  w.part = w.part.unsqueeze(-1).view(dtype);
}

void make_one_dtype(WindowPart& view, WindowPart& base) {
  const auto a = static_cast<int64_t>(view.part.element_size()), b = static_cast<int64_t>(base.part.element_size());
  const c10::ScalarType dtype = b < a ? base.part.scalar_type() : view.part.scalar_type();
  split_elements(view, dtype, std::max<int64_t>(a / b, 1));
  split_elements(base, dtype, std::max<int64_t>(b / a, 1));
}

// ------------------------------------------------------------ dim by dim

}  // namespace

std::optional<DimMap> map_dims(const Window& view, const Window& base) {
  DimMap map{std::vector<int>(view.sizes.size(), -1), Shape(view.sizes.size(), 0), Shape(base.sizes.size(), 0)};
  const std::vector<size_t> order = dims_by_stride(base);
  int64_t rest = view.offset - base.offset;
  if (rest < 0) return std::nullopt;
  for (size_t d : order) {
    map.start[d] = std::min(rest / base.strides[d], base.sizes[d] - 1);
    rest -= map.start[d] * base.strides[d];
  }
  if (rest != 0) return std::nullopt;
  std::vector<bool> taken(base.sizes.size());
  for (size_t j = 0; j < view.sizes.size(); ++j) {
    if (view.sizes[j] == 1 || view.strides[j] == 0) continue;
    for (size_t d : order) {
      const int64_t step = view.strides[j] / base.strides[d];
      if (taken[d] || view.strides[j] % base.strides[d] != 0 ||
          map.start[d] + step * (view.sizes[j] - 1) >= base.sizes[d])
        continue;
      taken[d] = true;
      map.base_dim[j] = static_cast<int>(d);
      map.step[j] = step;
      break;
    }
    if (map.base_dim[j] < 0) return std::nullopt;
  }
  return map;
}

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a <= 0 ? -(-a / b) : (a + b - 1) / b; }

bool holds(const IndexRanges& runs, int64_t index) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const IndexRange& r) { return r.begin <= index && index < r.begin + r.size; });
}

}  // namespace

std::optional<LocalLayout> stored_part(const Window& view, const Window& base, const DimMap& map,
                                       const LocalLayout& held) {
  if (held.empty()) return std::nullopt;
  std::vector<bool> stepped(base.sizes.size());
  LocalLayout part;
  for (size_t j = 0; j < view.sizes.size(); ++j) {
    IndexRanges runs;
    if (map.base_dim[j] < 0) {
      if (view.sizes[j] > 0) runs.push_back({0, 1});
    } else {
      const auto d = static_cast<size_t>(map.base_dim[j]);
      stepped[d] = true;
      for (const IndexRange& run : held.dims[d]) {
        const int64_t first = std::max<int64_t>(ceil_div(run.begin - map.start[d], map.step[j]), 0);
        const int64_t last = std::min(ceil_div(run.begin + run.size - map.start[d], map.step[j]), view.sizes[j]);
        if (first >= last) continue;
        if (!runs.empty() && runs.back().begin + runs.back().size == first) {
          runs.back().size += last - first;
        } else {
          runs.push_back({first, last - first});
        }
      }
    }
    if (runs.empty()) return std::nullopt;
    part.offsets.push_back(runs[0].begin);
    part.dims.push_back(std::move(runs));
  }
  for (size_t d = 0; d < base.sizes.size(); ++d) {
    if (!stepped[d] && !is_expanded(base, d) && !holds(held.dims[d], map.start[d])) return std::nullopt;
  }
  return part;
}

namespace {

// `count` consecutive places in the view's part, every `base_step`-th in the base's.
struct Stretch {
  int64_t view_begin, base_begin, base_step, count;
};

// The elements of a dim that both hold: index i of the view is index start + step * i of the base.
std::vector<Stretch> shared(const IndexRanges& view, const IndexRanges& base, int64_t start, int64_t step) {
  std::vector<Stretch> result;
  int64_t view_place = 0;
  for (const IndexRange& v : view) {
    int64_t base_place = 0;
    for (const IndexRange& b : base) {
      const int64_t first = std::max(v.begin, ceil_div(b.begin - start, step));
      const int64_t last = std::min(v.begin + v.size, ceil_div(b.begin + b.size - start, step));
      if (first < last) {
        result.push_back(
            {view_place + first - v.begin, base_place + start + step * first - b.begin, step, last - first});
      }
      base_place += b.size;
    }
    view_place += v.size;
  }
  return result;
}

// The written elements: one strided block per choice of a stretch per dim.
struct Blocks {
  at::Tensor from, to;
  std::vector<std::vector<Stretch>> stretches;
  std::vector<int64_t> from_strides, to_strides;  // of those dims

  void write(size_t dim, std::vector<int64_t>& sizes, std::vector<int64_t>& steps, int64_t from_offset,
             int64_t to_offset) const {
    if (dim == stretches.size()) {
      copy_values(at::as_strided(to, sizes, steps, to_offset), at::as_strided(from, sizes, from_strides, from_offset));
      return;
    }
    for (const Stretch& s : stretches[dim]) {
      sizes[dim] = s.count;
      steps[dim] = to_strides[dim] * s.base_step;
      write(dim + 1, sizes, steps, from_offset + from_strides[dim] * s.view_begin,
            to_offset + to_strides[dim] * s.base_begin);
    }
  }
};

void store_blocks(const WindowPart& view, const WindowPart& base, const DimMap& map) {
  Blocks blocks{view.part, base.part, {}, {}, {}};
  const auto add = [&](std::vector<Stretch> stretches, int64_t from_stride, int64_t to_stride) {
    blocks.stretches.push_back(std::move(stretches));
    blocks.from_strides.push_back(from_stride);
    blocks.to_strides.push_back(to_stride);
  };
  std::vector<bool> stepped(base.window.sizes.size());
  for (size_t j = 0; j < view.window.sizes.size(); ++j) {
    if (map.base_dim[j] < 0) continue;
    const size_t d = map.base_dim[j];
    stepped[d] = true;
    add(shared(view.layout.dims[j], base.layout.dims[d], map.start[d], map.step[j]), view.part.stride(j),
        base.part.stride(d));
  }
  for (size_t d = 0; d < base.window.sizes.size(); ++d) {
    if (stepped[d]) continue;
    if (is_expanded(base.window, d)) {  // on all ranks
      add({{0, 0, 1, base.part.size(d)}}, 0, base.part.stride(d));
    } else {
      add(shared({{0, 1}}, base.layout.dims[d], map.start[d], 1), 0, base.part.stride(d));
    }
  }
  std::vector<int64_t> sizes(blocks.stretches.size()), steps(blocks.stretches.size());
  blocks.write(0, sizes, steps, view.part.storage_offset(), base.part.storage_offset());
}

// ------------------------------------------------------------ element by element

at::Tensor indices(const IndexRanges& runs, const at::TensorOptions& options) {
  std::vector<at::Tensor> pieces = {at::arange(0, options)};
  for (const IndexRange& run : runs) pieces.push_back(at::arange(run.begin, run.begin + run.size, options));
  return at::cat(pieces);
}

// For views that regroup dims, such as view(-1) and diagonal().
void store_elements(const WindowPart& view, const WindowPart& base) {
  const auto options = view.part.options().dtype(at::kLong);
  at::Tensor rest = at::full({}, view.window.offset - base.window.offset, options);
  for (size_t j = 0; j < view.window.sizes.size(); ++j) {
    rest = rest.unsqueeze(-1) + indices(view.layout.dims[j], options) * view.window.strides[j];
  }
  at::Tensor held = rest.ge(0);
  std::vector<at::Tensor> places(base.window.sizes.size());
  for (size_t d : dims_by_stride(base.window)) {
    const at::Tensor index = rest.div(base.window.strides[d], "floor").clamp(0, base.window.sizes[d] - 1);
    rest = rest - index * base.window.strides[d];
    at::Tensor table = at::full({base.window.sizes[d]}, -1, options);
    const at::Tensor mine = indices(base.layout.dims[d], options);
    table.index_put_({mine}, at::arange(mine.numel(), options));
    places[d] = table.index({index});
    held = held.logical_and(places[d].ge(0));
  }
  held = held.logical_and(rest.eq(0));
  c10::List<std::optional<at::Tensor>> where;
  for (at::Tensor& place : places) {
    // A dim of one element: a rank that holds any element holds it.
    where.push_back(place.defined() ? place.masked_select(held) : at::full({}, 0, options));
  }
  at::Tensor dest = base.part;
  const at::Tensor values = view.part.masked_select(held);
  if (values.numel() > 0) dest.index_put_(where, values);
}

}  // namespace

std::string why_not_storable(Window view, c10::ScalarType view_dtype, Window base, c10::ScalarType base_dtype) {
  const auto a = static_cast<int64_t>(c10::elementSize(view_dtype)),
             b = static_cast<int64_t>(c10::elementSize(base_dtype));
  split_window(view, std::max<int64_t>(a / b, 1));
  split_window(base, std::max<int64_t>(b / a, 1));
  if (map_dims(view, base)) return "";
  for (size_t d = 0; d < base.sizes.size(); ++d) {
    if (is_expanded(base, d)) {
      return "writing through a view that regroups the dims of an expanded tensor, whose parts had to move for it, is "
             "not supported; clone() the expanded tensor first";
    }
  }
  return "";
}

void copy_values(at::Tensor dest, at::Tensor src) {
  for (int64_t d = 0; d < dest.dim(); ++d) {
    if (dest.stride(d) != 0 || dest.size(d) < 2) continue;
    dest = dest.narrow(d, 0, 1);
    src = src.narrow(d, 0, 1);
  }
  dest.copy_(src);
}

void store_through(WindowPart view, WindowPart base) {
  if (view.part.numel() == 0 || base.part.numel() == 0) return;
  if (view.part.scalar_type() != base.part.scalar_type()) view.part = view.part.resolve_conj().resolve_neg();
  make_one_dtype(view, base);
  if (const auto map = map_dims(view.window, base.window)) return store_blocks(view, base, *map);
  for (size_t d = 0; d < base.window.sizes.size(); ++d)
    TORCH_INTERNAL_ASSERT(!is_expanded(base.window, d), "see why_not_storable()");
  store_elements(view, base);
}

}  // namespace dtensor::internal
