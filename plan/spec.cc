#include "plan/spec.h"

#include <ATen/ExpandUtils.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <ostream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "placement/parse_placements.h"
#include "plan/largest_part.h"
#include "plan/sized_impl.h"

namespace dtensor {
using namespace internal;

namespace internal {

// The set of specs alive. An entry is removed by its spec's deleter, under the lock and before the memory goes, so
// every entry may be read under the lock. Between the release of the last reference and the deleter, get() can find an
// entry whose spec is dying; it replaces it by a new spec, and the deleter does not touch an entry that is not its own.
struct SpecInterner {
  struct Entry {
    const Spec* spec;
    std::weak_ptr<const Spec> weak;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Entry& e) const { return (*this)(e.spec); }
    size_t operator()(const Spec* s) const {
      return absl::HashOf(s->mesh_.identity(), s->placements_, absl::MakeConstSpan(s->meta_.sizes),
                          absl::MakeConstSpan(s->meta_.strides), static_cast<int>(s->meta_.dtype),
                          s->meta_.wrapped_number, static_cast<int>(s->meta_.number));
    }
  };
  struct Equal {
    using is_transparent = void;
    static const Spec* of(const Entry& e) { return e.spec; }
    static const Spec* of(const Spec* s) { return s; }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      const Spec* x = of(a);
      const Spec* y = of(b);
      return x == y || (x->mesh_ == y->mesh_ && x->meta_ == y->meta_ && x->placements_ == y->placements_);
    }
  };

  std::mutex mutex;
  absl::flat_hash_set<Entry, Hash, Equal> specs;
  std::atomic<uint64_t> next_id{1};

  // Never destroyed: specs may outlive every static.
  static SpecInterner& instance() {
    static auto* interner = new SpecInterner;
    return *interner;
  }

  SpecPtr intern(const DeviceMesh& mesh, Placements placements, const TensorMeta& meta) {
    auto candidate = std::unique_ptr<Spec>(new Spec);
    candidate->mesh_ = mesh.idle();
    candidate->placements_ = std::move(placements);
    candidate->meta_ = meta;
    std::lock_guard<std::mutex> lock(mutex);
    auto it = specs.find(candidate.get());
    if (it != specs.end()) {
      if (SpecPtr alive = it->weak.lock()) return alive;
      specs.erase(it);
    }
    candidate->id_ = next_id++;
    const Placements& placed = candidate->placements_;
    candidate->replicated_ = absl::c_all_of(placed, [](const Placement& p) { return p.is_replicate(); });
    candidate->partial_ = absl::c_any_of(placed, [](const Placement& p) { return p.is_partial(); });
    candidate->uneven_ =
        absl::c_any_of(placed, [&](const Placement& p) { return p.is_sharded() && candidate->is_uneven(p.dim()); });
    if (!mesh.local_ranks().empty()) candidate->first_local_shape_ = candidate->compute_local_shape(0);
    SpecPtr spec(candidate.release(), [this](const Spec* s) { release(s); });
    specs.insert({spec.get(), spec});
    return spec;
  }

  void release(const Spec* spec) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      auto it = specs.find(spec);
      if (it != specs.end() && it->spec == spec) specs.erase(it);
    }
    delete spec;  // outside the lock: it may hold the last reference to a world and everything in it
  }
};

}  // namespace internal

Spec::~Spec() { delete sized_impl_.load(); }

bool Spec::is_uneven(int64_t dim) const {
  if (sizes()[dim] == 1) return false;
  int64_t ranks = 1;
  for (int64_t m = 0; m < mesh_.ndim(); ++m) {
    if (placements_[m].is_sharded_on(dim)) ranks *= mesh_.size(m);
  }
  return sizes()[dim] % ranks != 0;
}

SpecPtr Spec::get(const DeviceMesh& mesh, const Placements& placements, const TensorMeta& meta) {
  TORCH_CHECK_VALUE(mesh.defined(), "[Spec] the mesh is not defined");
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh.ndim(), "[Spec] ", placements.size(),
                    " placement(s) \"", dtensor::to_string(placements), "\" for ", mesh.to_string(), ", which has ",
                    mesh.ndim(), " dim(s): give one placement per mesh dim");
  TORCH_CHECK_VALUE(meta.sizes.size() == meta.strides.size(), "[Spec] ", meta.sizes.size(), " sizes but ",
                    meta.strides.size(), " strides");
  auto normalized = normalize_placements(placements, static_cast<int64_t>(meta.sizes.size()));
  TORCH_CHECK_VALUE(normalized.ok(), "[Spec] \"", dtensor::to_string(placements), "\" does not fit a tensor of shape [",
                    absl::StrJoin(meta.sizes, ", "), "]: ", std::string(normalized.status().message()));
  return SpecInterner::instance().intern(mesh, *std::move(normalized), meta);
}

SpecPtr Spec::get(const DeviceMesh& mesh, const Placements& placements, c10::ArrayRef<int64_t> sizes,
                  c10::ScalarType dtype) {
  return get(mesh, placements, TensorMeta{Shape(sizes.begin(), sizes.end()), row_major_strides(sizes), dtype});
}

SpecPtr Spec::with_placements(const Placements& placements) const { return get(mesh_, placements, meta_); }

LocalLayout Spec::local_layout(int64_t i) const {
  return dtensor::local_layout(meta_.sizes, mesh_.shape(), placements_, mesh_.local_coordinate(i));
}

LocalLayout Spec::layout_of_rank(int64_t rank) const {
  return dtensor::local_layout(meta_.sizes, mesh_.shape(), placements_, mesh_.coordinate(rank));
}

Shape Spec::compute_local_shape(int64_t i) const {
  return dtensor::local_shape(meta_.sizes, mesh_.shape(), placements_, mesh_.local_coordinate(i));
}

int64_t Spec::compute_max_local_bytes() const {
  const int64_t bytes = largest_part_bytes(meta_, mesh_.shape(), placements_);
  max_local_bytes_.store(bytes, std::memory_order_relaxed);
  return bytes;
}

const SizedImpl& Spec::make_sized_impl() const {
  auto made = std::make_unique<SizedImpl>(c10::DispatchKeySet(c10::DispatchKey::CPU),
                                          c10::scalarTypeToTypeMeta(meta_.dtype), c10::Device(c10::DeviceType::CPU));
  made->set_sizes_and_strides(c10::IntArrayRef(meta_.sizes.data(), meta_.sizes.size()),
                              c10::IntArrayRef(meta_.strides.data(), meta_.strides.size()));
  const SizedImpl* other = nullptr;  // another thread may have been first
  if (sized_impl_.compare_exchange_strong(other, made.get())) return *made.release();
  return *other;
}

std::string Spec::to_short_string() const {
  return absl::StrCat(dtensor::to_string(meta_), "(", dtensor::to_string(placements_), ")");
}

std::string Spec::to_string() const { return absl::StrCat(to_short_string(), " @ ", mesh_.to_string()); }

size_t Spec::num_alive() {
  auto& interner = SpecInterner::instance();
  std::lock_guard<std::mutex> lock(interner.mutex);
  return interner.specs.size();
}

std::ostream& operator<<(std::ostream& os, const Spec& spec) { return os << spec.to_string(); }

}  // namespace dtensor
