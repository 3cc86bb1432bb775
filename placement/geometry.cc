#include "placement/geometry.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor {
using namespace internal;

namespace {

// Copies stretches of a run list, given by position in its storage order. The stretches must ascend: many of them then
// cost one walk over the list.
class RunCutter {
 public:
  explicit RunCutter(const IndexRanges& runs) : run_(runs.begin()) {}

  void append(int64_t begin, int64_t size, IndexRanges& out) {
    while (size > 0) {
      while (begin >= passed_ + run_->size) {
        passed_ += run_->size;
        ++run_;
      }
      const int64_t skip = begin - passed_;
      const IndexRange piece{run_->begin + skip, std::min(size, run_->size - skip)};
      if (!out.empty() && out.back().begin + out.back().size == piece.begin) {
        out.back().size += piece.size;
      } else {
        out.push_back(piece);
      }
      begin += piece.size;
      size -= piece.size;
    }
  }

 private:
  IndexRanges::const_iterator run_;
  int64_t passed_ = 0;  // elements before *run_
};

// How many of `size` elements the i-th of n ranks holds. Needs no runs: all pieces of a StridedShard are equally long
// but the last.
int64_t shard_size(int64_t size, const Placement& placement, int64_t n, int64_t i) {
  if (placement.is_shard()) return chunk(size, n, i).size;
  const int64_t piece = chunk(size, placement.split_factor(), 0).size;
  if (piece == 0) return 0;
  return size / piece * chunk(piece, n, i).size + chunk(size % piece, n, i).size;
}

// A stretch of one dim that two parts share, by local offset in each.
struct Match {
  int64_t from = 0;
  int64_t to = 0;
  int64_t size = 0;
};

// Calls visit(Match) for every stretch that two run lists share, in order; one merge, as both ascend.
template <typename Visit>
void for_each_match(const IndexRanges& source, const IndexRanges& target, Visit visit) {
  int64_t from = 0;  // elements before *s
  int64_t to = 0;    // elements before *t
  auto s = source.begin();
  auto t = target.begin();
  while (s != source.end() && t != target.end()) {
    const int64_t begin = std::max(s->begin, t->begin);
    const int64_t end = std::min(s->begin + s->size, t->begin + t->size);
    if (begin < end) visit(Match{from + begin - s->begin, to + begin - t->begin, end - begin});
    if (s->begin + s->size == end) {
      from += s->size;
      ++s;
    } else {
      to += t->size;
      ++t;
    }
  }
}

using Matches = c10::SmallVector<Match, 2>;

Matches matches_of(const IndexRanges& source, const IndexRanges& target) {
  Matches matches;
  for_each_match(source, target, [&](const Match& m) {
    // Two parts that skip the same indices hold side by side what is apart in the tensor.
    if (!matches.empty() && matches.back().from + matches.back().size == m.from &&
        matches.back().to + matches.back().size == m.to) {
      matches.back().size += m.size;
    } else {
      matches.push_back(m);
    }
  });
  return matches;
}

}  // namespace

namespace internal {

int64_t total_size(const IndexRanges& runs) {
  int64_t size = 0;
  for (const IndexRange& run : runs) size += run.size;
  return size;
}

IndexRange chunk(int64_t size, int64_t n, int64_t i) {
  TORCH_INTERNAL_ASSERT(size >= 0 && 0 <= i && i < n);
  const int64_t piece = size / n + (size % n != 0);
  const int64_t begin = std::min(piece * i, size);
  return {begin, std::min(piece, size - begin)};
}

IndexRanges shard_runs(const IndexRanges& runs, const Placement& placement, int64_t n, int64_t i) {
  if (!placement.is_sharded()) return runs;
  IndexRanges part;
  RunCutter cutter(runs);
  const int64_t size = total_size(runs);
  const int64_t pieces = placement.is_strided_shard() ? placement.split_factor() : 1;
  for (int64_t k = 0; k < pieces; ++k) {
    const IndexRange piece = chunk(size, pieces, k);
    if (piece.size == 0) break;  // so are the rest
    const IndexRange mine = chunk(piece.size, n, i);
    cutter.append(piece.begin + mine.begin, mine.size, part);
  }
  return part;
}

}  // namespace internal

Shape LocalLayout::sizes() const {
  Shape sizes;
  for (const IndexRanges& runs : dims) sizes.push_back(total_size(runs));
  return sizes;
}

bool LocalLayout::is_box() const {
  return std::all_of(dims.begin(), dims.end(), [](const IndexRanges& runs) { return runs.size() <= 1; });
}

bool LocalLayout::empty() const {
  return std::any_of(dims.begin(), dims.end(), [](const IndexRanges& runs) { return runs.empty(); });
}

int64_t LocalLayout::numel() const {
  int64_t numel = 1;
  for (const IndexRanges& runs : dims) numel *= total_size(runs);
  return numel;
}

namespace internal {

LocalLayout box_part(c10::ArrayRef<int64_t> offsets, c10::ArrayRef<int64_t> sizes) {
  LocalLayout part;
  part.offsets.assign(offsets.begin(), offsets.end());
  for (size_t d = 0; d < sizes.size(); ++d) {
    IndexRanges& runs = part.dims.emplace_back();
    if (sizes[d] > 0) runs.push_back({offsets[d], sizes[d]});
  }
  return part;
}

}  // namespace internal

LocalLayout local_layout(c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> mesh_shape, const Placements& placements,
                         c10::ArrayRef<int64_t> coordinate) {
  TORCH_INTERNAL_ASSERT(placements.size() == mesh_shape.size() && placements.size() == coordinate.size());
  LocalLayout layout;
  for (int64_t size : shape) {
    IndexRanges& runs = layout.dims.emplace_back();
    if (size > 0) runs.push_back({0, size});
  }
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_sharded()) continue;
    TORCH_INTERNAL_ASSERT(0 <= placements[i].dim() && placements[i].dim() < static_cast<int64_t>(shape.size()));
    IndexRanges& runs = layout.dims[placements[i].dim()];
    runs = shard_runs(runs, placements[i], mesh_shape[i], coordinate[i]);
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    layout.offsets.push_back(layout.dims[d].empty() ? shape[d] : layout.dims[d].front().begin);
  }
  return layout;
}

Shape local_shape(c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> mesh_shape, const Placements& placements,
                  c10::ArrayRef<int64_t> coordinate) {
  TORCH_INTERNAL_ASSERT(placements.size() == mesh_shape.size() && placements.size() == coordinate.size());
  Shape sizes(shape.begin(), shape.end());
  for (size_t i = 0; i < placements.size(); ++i) {
    if (!placements[i].is_sharded()) continue;
    int64_t& size = sizes[placements[i].dim()];
    size = shard_size(size, placements[i], mesh_shape[i], coordinate[i]);
  }
  return sizes;
}

namespace internal {

std::vector<Block> overlap(const LocalLayout& source, const LocalLayout& target) {
  TORCH_INTERNAL_ASSERT(source.dims.size() == target.dims.size());
  const size_t ndim = target.dims.size();
  c10::SmallVector<Matches, 4> matches;
  size_t count = 1;
  for (size_t d = 0; d < ndim; ++d) {
    matches.push_back(matches_of(source.dims[d], target.dims[d]));
    count *= matches.back().size();
    if (count == 0) return {};
  }

  // Every combination of one match per dim, the last dim fastest.
  std::vector<Block> blocks(count);
  c10::SmallVector<size_t, 4> index(ndim, 0);
  for (Block& block : blocks) {
    for (size_t d = 0; d < ndim; ++d) {
      const Match& m = matches[d][index[d]];
      block.from.push_back(m.from);
      block.to.push_back(m.to);
      block.sizes.push_back(m.size);
    }
    for (size_t d = ndim; d-- > 0 && ++index[d] == matches[d].size();) index[d] = 0;
  }
  return blocks;
}

int64_t overlap_numel(const LocalLayout& source, const LocalLayout& target) {
  TORCH_INTERNAL_ASSERT(source.dims.size() == target.dims.size());
  int64_t numel = 1;
  for (size_t d = 0; d < target.dims.size() && numel > 0; ++d) {
    int64_t shared = 0;
    for_each_match(source.dims[d], target.dims[d], [&](const Match& m) { shared += m.size; });
    numel *= shared;
  }
  return numel;
}

}  // namespace internal

}  // namespace dtensor
