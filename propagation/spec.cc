#include "propagation/spec.h"

#include <ATen/ExpandUtils.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <ostream>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "propagation/layout_geometry.h"

namespace dtensor {

int64_t TensorMeta::numel() const {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

int64_t TensorMeta::bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }

Shape contiguous_strides(absl::Span<const int64_t> sizes) {
  Shape strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

// The set of specs alive. An entry is removed by its spec's deleter, under the lock and before the memory goes, so
// every entry may be read under the lock. Between the last reference's end and the deleter's turn a get can find an
// entry whose spec is dying; it puts a new spec in its place, and the deleter leaves an entry that is not its own
// alone.
struct SpecInterner {
  struct Entry {
    const Spec* spec;
    std::weak_ptr<const Spec> weak;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const Entry& e) const { return (*this)(e.spec); }
    size_t operator()(const Spec* s) const {
      return absl::HashOf(s->mesh_.identity(), s->placements_, s->meta_.sizes, s->meta_.strides,
                          static_cast<int>(s->meta_.dtype), s->meta_.wrapped_number, static_cast<int>(s->meta_.number));
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

SpecPtr Spec::get(const DeviceMesh& mesh, const Placements& placements, absl::Span<const int64_t> sizes,
                  c10::ScalarType dtype) {
  return get(mesh, placements, TensorMeta{Shape(sizes.begin(), sizes.end()), contiguous_strides(sizes), dtype});
}

bool is_dense(const TensorMeta& meta) {
  if (meta.strides == contiguous_strides(meta.sizes)) return true;  // most are
  std::vector<size_t> order;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return meta.strides[a] < meta.strides[b]; });
  int64_t expected = 1;
  for (size_t d : order) {
    if (meta.strides[d] != expected) return false;
    expected *= meta.sizes[d];
  }
  return true;
}

TensorMeta in_own_memory(TensorMeta meta) {
  if (is_dense(meta)) return meta;
  const auto strides = at::infer_dense_strides(at::IntArrayRef(meta.sizes.data(), meta.sizes.size()),
                                               at::IntArrayRef(meta.strides.data(), meta.strides.size()));
  meta.strides.assign(strides.begin(), strides.end());
  return meta;
}

SpecPtr Spec::with_placements(const Placements& placements) const { return get(mesh_, placements, meta_); }

bool Spec::is_replicated() const {
  for (const Placement& p : placements_) {
    if (!p.is_replicate()) return false;
  }
  return true;
}

bool Spec::has_partial() const {
  for (const Placement& p : placements_) {
    if (p.is_partial()) return true;
  }
  return false;
}

LocalLayout Spec::local_layout(int64_t i) const {
  return dtensor::local_layout(meta_.sizes, mesh_.shape(), placements_, mesh_.local_coordinate(i));
}

LocalLayout Spec::layout_of_rank(int64_t rank) const {
  return dtensor::local_layout(meta_.sizes, mesh_.shape(), placements_, mesh_.coordinate(rank));
}

Shape Spec::local_shape(int64_t i) const {
  return dtensor::local_shape(meta_.sizes, mesh_.shape(), placements_, mesh_.local_coordinate(i));
}

int64_t Spec::max_local_bytes() const {
  return LayoutGeometry(mesh_.shape(), meta_).part_bytes(layers_of(placements_));
}

std::string Spec::to_short_string() const {
  return absl::StrCat(dtensor::to_string(meta_), "(", dtensor::to_string(placements_), ")");
}

std::string Spec::to_string() const { return absl::StrCat(to_short_string(), " @ ", mesh_.to_string()); }

std::string to_string(const TensorMeta& meta) {
  return absl::StrCat(std::string(short_name(meta.dtype)), "[", absl::StrJoin(meta.sizes, ", "), "]");
}

size_t Spec::num_alive() {
  auto& interner = SpecInterner::instance();
  std::lock_guard<std::mutex> lock(interner.mutex);
  return interner.specs.size();
}

std::ostream& operator<<(std::ostream& os, const Spec& spec) { return os << spec.to_string(); }

std::string_view short_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "f32";
    case c10::ScalarType::Double:
      return "f64";
    case c10::ScalarType::Half:
      return "f16";
    case c10::ScalarType::BFloat16:
      return "bf16";
    case c10::ScalarType::Long:
      return "i64";
    case c10::ScalarType::Int:
      return "i32";
    case c10::ScalarType::Short:
      return "i16";
    case c10::ScalarType::Char:
      return "i8";
    case c10::ScalarType::Byte:
      return "u8";
    case c10::ScalarType::UInt16:
      return "u16";
    case c10::ScalarType::UInt32:
      return "u32";
    case c10::ScalarType::UInt64:
      return "u64";
    case c10::ScalarType::Bool:
      return "b8";
    case c10::ScalarType::ComplexHalf:
      return "c32";
    case c10::ScalarType::ComplexFloat:
      return "c64";
    case c10::ScalarType::ComplexDouble:
      return "c128";
    case c10::ScalarType::Float8_e4m3fn:
      return "f8e4m3fn";
    case c10::ScalarType::Float8_e5m2:
      return "f8e5m2";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace dtensor
