#include "tests/fuzz/generate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <set>

#include "tests/fuzz/arguments.h"
#include "tests/fuzz/random_leaf.h"
#include "tests/fuzz/undefined.h"

namespace dtensor::fuzz {
namespace {

constexpr int64_t kMostElements = 1500;

bool is_small(const at::Tensor& t) { return !t.defined() || (t.numel() <= kMostElements && t.dim() <= 6); }

// Views, views of them, and writes through them.
bool is_about_views(const Operator& op) {
  static const auto* const writes =
      new std::set<std::string>{"add", "mul", "copy", "fill", "zero", "index_put", "masked_fill", "clamp"};
  return op.is_view ||
         (op.handle.schema().is_mutable() && op.name.find("out") == std::string::npos && writes->count(op.base) > 0);
}

using Weighted = std::vector<std::pair<const Operator*, double>>;

template <typename Condition>
Weighted weighted(const Condition& condition) {
  Weighted some;
  for (const Operator& op : catalog()) {
    if (condition(op)) some.emplace_back(&op, op.weight);
  }
  TORCH_CHECK(!some.empty(), "no operator is left to make programs of");
  return some;
}

const Weighted& all_operators() {
  static const auto* const all = new Weighted(weighted([](const Operator&) { return true; }));
  return *all;
}

const Weighted& view_operators() {
  static const auto* const all = new Weighted(weighted(is_about_views));
  return *all;
}

class Generator {
 public:
  Generator(uint64_t seed, const GenerateOptions& options) : draft_(seed), options_(options) {
    if (options_.only) some_ = weighted(options_.only);
    operators_ = options_.only ? &some_ : draft_.random.chance(0.25) ? &view_operators() : &all_operators();
  }

  Program make() {
    Random& random = draft_.random;
    Program& program = draft_.program;
    program.mesh = random_mesh(random);
    program.order = static_cast<int>(random.below(3));
    program.seeds = static_cast<Program::Seeds>(random.below(3));
    program.replicate_unsupported = random.chance(0.3);
    draft_.usual_dtype = random.chance(0.5) ? c10::ScalarType::Double : random_dtype(random);
    const int64_t steps = random.between(1, options_.most_steps);
    for (int64_t tries = 0; tries < 8 * steps && static_cast<int64_t>(program.steps.size()) < steps && !broken_;
         ++tries) {
      try {
        if (random.chance(0.06)) {
          add_redistribute();
        } else {
          add_step(*random.pick_weighted(*operators_));
        }
      } catch (const c10::Error&) {
        // One of several views of a tensor that was written to: even its requires_grad() throws.
        program.steps.clear();
        break;
      }
    }
    drop_dangling(program);
    return program;
  }

 private:
  int next_first_id() const { return 1000 + 32 * static_cast<int>(draft_.program.steps.size()); }

  void add_redistribute() {
    std::vector<int> ids;
    for (const auto& [id, t] : draft_.plain.tensors()) {
      if (t.defined()) ids.push_back(id);
    }
    if (ids.empty()) return;
    Step step;
    step.op = kRedistribute;
    step.args = {TensorRef{draft_.random.pick(ids)}};
    const at::Tensor& t = draft_.at(std::get<TensorRef>(step.args[0]).id);
    step.placements = random_layout(draft_.random, draft_.program.mesh, t.dim(), t.scalar_type());
    for (Placement& p : step.placements) {  // a plain tensor becomes no Partial other than a sum
      if (p.is_partial()) p = Replicate();
    }
    step.first_id = next_first_id();
    draft_.plain.run(step);
    draft_.program.steps.push_back(std::move(step));
  }

  void add_step(const Operator& op) {
    if (options_.trying) options_.trying(op);
    const size_t leaves = draft_.program.leaves.size();
    Arguments arguments(draft_, op);
    auto args = arguments.make();
    Step step{op.name, {}, next_first_id(), {}};
    if (args) step.args = std::move(*args);
    if (!args || !add_outputs(op, step) || reads_what_it_writes(op, step) || !accepted(op, step))
      return draft_.cut_leaves(leaves);
    draft_.program.steps.push_back(std::move(step));
  }

  // An operator that reads its written tensor by another argument has undefined results, unless it is elementwise.
  bool reads_what_it_writes(const Operator& op, const Step& step) const {
    if (op.handle.hasTag(at::Tag::pointwise)) return false;
    const auto& arguments = op.handle.schema().arguments();
    std::vector<int> written;
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (arguments[a].alias_info() == nullptr || !arguments[a].alias_info()->isWrite()) continue;
      if (const auto* ref = std::get_if<TensorRef>(&step.args[a]); ref && ref->id >= 0) written.push_back(ref->id);
      if (const auto* refs = std::get_if<TensorRefs>(&step.args[a]))
        written.insert(written.end(), refs->ids.begin(), refs->ids.end());
    }
    std::multiset<const void*> memory;
    for (int id : inputs_of(step))
      memory.insert(draft_.at(id).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    return std::any_of(written.begin(), written.end(), [&](int id) {
      return memory.count(draft_.at(id).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()) > 1;
    });
  }

  bool is_out(const Operator& op) const {
    const auto& arguments = op.handle.schema().arguments();
    return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); });
  }

  // Tensors of the right shape for the out= arguments: the operator's results for empty ones.
  bool add_outputs(const Operator& op, Step& step) {
    if (!is_out(op)) return true;
    const auto& arguments = op.handle.schema().arguments();
    Step trial = step;
    const size_t leaves = draft_.program.leaves.size();
    const c10::ScalarType dtype = draft_.random.chance(0.8) || draft_.program.leaves.empty()
                                      ? draft_.usual_dtype
                                      : draft_.program.leaves.back().dtype;
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (!arguments[a].is_out()) continue;
      if (arguments[a].type()->kind() != c10::TypeKind::TensorType) return false;
      Leaf empty;
      empty.dtype = arguments[a].name() == "indices" ? c10::ScalarType::Long : dtype;
      empty.sizes = {0};
      if (op.base == "binary_cross_entropy")
        empty.sizes = draft_.at(std::get<TensorRef>(step.args[0]).id).sizes().vec();
      empty.values.resize(c10::multiply_integers(empty.sizes) * (c10::isComplexType(empty.dtype) ? 2 : 1));
      empty.placements = Placements(draft_.program.mesh.size(), Replicate());
      trial.args[a] = TensorRef{draft_.add(empty)};
    }
    // Only tensors without gradients may be out= arguments.
    for (int id : inputs_of(trial)) {
      if (draft_.at(id).requires_grad()) return false;
    }
    try {
      draft_.plain.run(trial);
    } catch (const std::exception&) {
      return false;
    }
    std::vector<std::pair<size_t, Leaf>> outs;
    for (size_t a = 0; a < arguments.size(); ++a) {
      if (!arguments[a].is_out()) continue;
      const at::Tensor& made = draft_.at(std::get<TensorRef>(trial.args[a]).id);
      if (!is_small(made)) return false;
      outs.emplace_back(a, random_leaf(draft_.random, draft_.program.mesh, made.sizes().vec(), made.scalar_type()));
      for (Placement& p : outs.back().second.placements) {  // few operators can write to one
        if (p.is_partial() && draft_.random.chance(0.8)) p = Replicate();
      }
      outs.back().second.requires_grad = false;
    }
    draft_.cut_leaves(leaves);
    for (auto& [a, leaf] : outs) step.args[a] = TensorRef{draft_.add(std::move(leaf))};
    return true;
  }

  // Whether plain LibTorch accepts the call. If it throws after it began to write, the values of its tensors are
  // undefined: no more steps then.
  bool accepted(const Operator& op, const Step& step) {
    const bool writes = op.handle.schema().is_mutable();
    try {
      draft_.plain.run(step);
    } catch (const UndefinedResult&) {  // before it began
      return false;
    } catch (const std::exception&) {
      broken_ = writes;
      return false;
    }
    for (int k = 0; k < 40; ++k) {
      const auto found = draft_.plain.tensors().find(step.first_id + k);
      if (found == draft_.plain.tensors().end()) continue;
      if (is_small(found->second) && !(found->second.defined() && found->second.layout() != at::kStrided)) continue;
      for (int j = 0; j < 40; ++j) draft_.plain.remove(step.first_id + j);
      broken_ = true;
      return false;
    }
    return true;
  }

  Draft draft_;
  const GenerateOptions& options_;
  Weighted some_;
  const Weighted* operators_ = nullptr;
  bool broken_ = false;
};

}  // namespace

Program generate(uint64_t seed, uint64_t index, const GenerateOptions& options) {
  return Generator(seed * 1000003 + index, options).make();
}

}  // namespace dtensor::fuzz
