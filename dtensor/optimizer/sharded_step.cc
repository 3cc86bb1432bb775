#include "dtensor/optimizer/sharded_step.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "dtensor/gradient_buckets.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/optimizer/optimizer_state.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/restore_contents.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

constexpr const char* kCaller = "ZeroRedundancyOptimizer";

// Index of the mesh dim; nullopt: the mesh has none of that name.
std::optional<int64_t> find_mesh_dim(const DeviceMesh& mesh, const std::string& name) {
  if (name.empty()) return mesh.ndim() == 1 ? std::optional<int64_t>(0) : std::nullopt;
  const auto& names = mesh.names();
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? std::nullopt : std::optional<int64_t>(found - names.begin());
}

// The layout of a parameter during the step; nullopt: it stays as it is.
std::optional<Layout> layout_of_parts(const at::Tensor& parameter, const std::string& mesh_dim) {
  const Spec& spec = *spec_of(parameter);
  const auto m = find_mesh_dim(spec.mesh(), mesh_dim);
  if (!m || spec.mesh().size(*m) == 1 || !spec.placements()[*m].is_replicate()) return std::nullopt;
  int64_t dim = -1;
  for (int64_t d = 0; d < parameter.dim(); ++d) {
    const auto is_sharded = [&](const Placement& p) { return p.is_sharded_on(d); };
    const auto& placements = spec.placements();
    if (std::any_of(placements.begin(), placements.end(), is_sharded)) continue;
    if (dim < 0 || parameter.size(d) > parameter.size(dim)) dim = d;
  }
  if (dim < 0) return std::nullopt;
  Placements to = spec.placements();
  to[*m] = Shard(dim);
  return Layout(spec.mesh(), std::move(to));
}

// Redistributes tensors to the layouts `to`, in the fewest collectives of at most gradient_bucket_bytes() each. `take`
// gets the results of one after the other, with the index of the first.
void redistribute_in_buckets(const std::vector<at::Tensor>& tensors, const std::vector<Layout>& to,
                             const std::function<void(size_t first, std::vector<at::Tensor> results)>& take) {
  const CommCause cause = explicit_cause(kCaller);
  for (size_t begin = 0, end = 0; begin < tensors.size(); begin = end) {
    const World& world = spec_of(tensors[begin])->mesh().world();
    for (int64_t bytes = 0; end < tensors.size() && spec_of(tensors[end])->mesh().world() == world; ++end) {
      const Spec& spec = *spec_of(tensors[end]);
      bytes += std::max(largest_part_bytes(spec.meta(), Layout(spec.mesh(), spec.placements())),
                        largest_part_bytes(spec.meta(), to[end]));
      if (end > begin && bytes > gradient_bucket_bytes(world)) break;
    }
    take(begin, redistribute_below_autograd(at::TensorList(tensors).slice(begin, end - begin),
                                            c10::ArrayRef<Layout>(to).slice(begin, end - begin), cause));
  }
}

// Whether another parameter of the optimizer is in the same memory: each of them would be updated from the old values.
bool shares_memory(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& other : group.params()) {
      if (is_dtensor(other) && !other.is_same(parameter) && memory_viewed_by(other) == memory_viewed_by(parameter))
        return true;
    }
  }
  return false;
}

bool is_laid_out_as(const at::Tensor& t, const Layout& layout) {
  return spec_of(t)->mesh() == layout.mesh() && spec_of(t)->placements() == layout.placements();
}

// The state's tensors that are as large as the parameter and have another layout, as those of a checkpoint.
std::vector<at::Tensor*> states_to_move(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                                        const Layout& to) {
  std::vector<at::Tensor*> result;
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return result;
  const auto fields = fields_of(*found->second);
  if (!fields) return result;
  for (const auto& [name, state] : fields->tensors) {
    const bool is_alike = state->defined() && is_dtensor(*state) && state->sizes() == parameter.sizes();
    if (is_alike && spec_of(*state)->mesh() == to.mesh() && !is_laid_out_as(*state, to)) result.push_back(state);
  }
  return result;
}

}  // namespace

void check_mesh_dim_of_states(torch::optim::Optimizer& optimizer, const std::string& mesh_dim) {
  std::string known = "none is distributed";
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      if (!is_dtensor(p)) continue;
      if (find_mesh_dim(spec_of(p)->mesh(), mesh_dim)) return;
      known = "one is on " + spec_of(p)->mesh().to_string();
    }
  }
  TORCH_CHECK_VALUE(false, "[", kCaller, "] mesh_dim is '", mesh_dim,
                    "', and no parameter is on a mesh with that dim: ", known,
                    ". Make the optimizer after distribute_module(), and name the dim over which parameters are "
                    "replicated: {.mesh_dim = \"dp\"}");
}

ShardedStep::ShardedStep(torch::optim::Optimizer& optimizer, const std::string& mesh_dim) {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor*> states;
  std::vector<Layout> to;
  std::vector<Whole> whole;
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& p : group.params()) {
      if (!is_dtensor(p) || !is_dtensor(p.grad())) continue;
      const auto layout = layout_of_parts(p, mesh_dim);
      const auto is_p = [&](const Whole& w) { return w.parameter.is_same(p); };
      if (!layout || shares_memory(optimizer, p) || std::any_of(whole.begin(), whole.end(), is_p)) continue;
      whole.push_back({p, p.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr(), p.storage_offset(), p.grad()});
      tensors.insert(tensors.end(), {p, p.grad()});
      to.insert(to.end(), 2, *layout);
    }
  }
  for (size_t k = 0; k < whole.size(); ++k) {
    for (at::Tensor* state : states_to_move(optimizer, whole[k].parameter, to[2 * k])) {
      states.push_back(state);
      tensors.push_back(*state);
      to.push_back(to[2 * k]);
    }
  }
  std::vector<at::Tensor> parts;
  redistribute_in_buckets(tensors, to, [&](size_t, std::vector<at::Tensor> results) {
    parts.insert(parts.end(), results.begin(), results.end());
  });
  whole_ = std::move(whole);
  for (size_t k = 0; k < whole_.size(); ++k) {
    share_contents(whole_[k].parameter, parts[2 * k]);
    whole_[k].parameter.mutable_grad() = parts[2 * k + 1];
  }
  for (size_t k = 0; k < states.size(); ++k) *states[k] = parts[2 * whole_.size() + k];
}

ShardedStep::~ShardedStep() {
  for (const Whole& w : whole_) restore(w);
}

void ShardedStep::restore(const Whole& w) noexcept {
  restore_contents(w.parameter, w.contents);
  w.parameter.unsafeGetTensorImpl()->set_storage_offset(w.offset);
  w.parameter.mutable_grad() = w.gradient;
}

void ShardedStep::finish() {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> parts;
  std::vector<Layout> to;
  for (const Whole& w : whole_) {
    const Spec& spec = *static_cast<const DTensorMeta&>(*w.contents).spec;
    parts.push_back(w.parameter);
    to.emplace_back(spec.mesh(), spec.placements());
  }
  redistribute_in_buckets(parts, to, [&](size_t first, std::vector<at::Tensor> updated) {
    for (size_t k = 0; k < updated.size(); ++k) {
      const at::Tensor& parameter = whole_[first + k].parameter;
      restore(whole_[first + k]);
      const RankTensors& values = meta_for_read(updated[k]).locals;
      const RankTensors& memory = meta_for_write(parameter).locals;
      {
        const LocalGuard guard;
        for (size_t r = 0; r < values.size(); ++r) memory[r].copy_(values[r]);
      }
      note_write(parameter, kCaller);
    }
  });
  whole_.clear();
}

}  // namespace dtensor::internal
