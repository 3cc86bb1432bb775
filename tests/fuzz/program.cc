#include "tests/fuzz/program.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor::fuzz {
namespace {

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

std::string name_of(int id) { return id < 0 ? "none" : absl::StrCat("t", id); }

}  // namespace

std::vector<int> inputs_of(const Step& step) {
  std::vector<int> ids;
  for (const Argument& a : step.args) {
    if (const auto* ref = std::get_if<TensorRef>(&a); ref && ref->id >= 0) ids.push_back(ref->id);
    if (const auto* refs = std::get_if<TensorRefs>(&a)) {
      std::copy_if(refs->ids.begin(), refs->ids.end(), std::back_inserter(ids), [](int id) { return id >= 0; });
    }
  }
  return ids;
}

void drop_dangling(Program& program) {
  constexpr int kResults = 32;  // as many as a step may have (Step::first_id)
  std::set<int> known, read;
  for (const Leaf& leaf : program.leaves) known.insert(leaf.id);
  std::vector<Step> kept;
  for (Step& step : program.steps) {
    const auto ids = inputs_of(step);
    if (!std::all_of(ids.begin(), ids.end(), [&](int id) { return known.count(id) > 0; })) continue;
    for (int k = 0; k < kResults; ++k) known.insert(step.first_id + k);
    read.insert(ids.begin(), ids.end());
    kept.push_back(std::move(step));
  }
  program.steps = std::move(kept);
  std::erase_if(program.leaves, [&](const Leaf& leaf) { return read.count(leaf.id) == 0; });
}

bool is_partial(const Leaf& leaf) {
  return std::any_of(leaf.placements.begin(), leaf.placements.end(), [](const Placement& p) { return p.is_partial(); });
}

std::string to_string(const Argument& argument) {
  return std::visit(
      Overloaded{[](std::monostate) { return std::string("none"); },
                 [](bool b) { return std::string(b ? "true" : "false"); }, [](int64_t i) { return absl::StrCat(i); },
                 [](double d) { return absl::StrCat(d, d == int64_t(d) ? "." : ""); },
                 [](const std::string& s) { return absl::StrCat("'", s, "'"); },
                 [](const std::vector<int64_t>& v) { return absl::StrCat("[", absl::StrJoin(v, ", "), "]"); },
                 [](const std::vector<double>& v) { return absl::StrCat("[", absl::StrJoin(v, ", "), "]"); },
                 [](const std::vector<bool>& v) { return absl::StrCat("[", absl::StrJoin(v, ", "), "]"); },
                 [](c10::ScalarType t) { return std::string(c10::toString(t)); },
                 [](c10::MemoryFormat f) { return absl::StrCat("format ", static_cast<int>(f)); },
                 [](const TensorRef& t) { return name_of(t.id); },
                 [](const TensorRefs& t) {
                   return absl::StrCat(
                       "[", absl::StrJoin(t.ids, ", ", [](std::string* out, int id) { *out += name_of(id); }), "]");
                 }},
      argument);
}

std::string to_string(const Program& program) {
  std::string text = absl::StrCat("mesh ", absl::StrJoin(program.mesh, "x"), ", gradients of order ", program.order,
                                  program.replicate_unsupported ? ", ReplicateUnsupported" : "", "\n");
  for (const Leaf& leaf : program.leaves) {
    absl::StrAppend(&text, "  t", leaf.id, " = ", c10::toString(leaf.dtype), "[", absl::StrJoin(leaf.sizes, ", "), "] ",
                    dtensor::to_string(leaf.placements), leaf.requires_grad ? " requires grad" : "", "\n");
  }
  for (const Step& step : program.steps) {
    absl::StrAppend(&text, "  t", step.first_id, ".. = ", step.op, "(",
                    absl::StrJoin(step.args, ", ", [](std::string* out, const Argument& a) { *out += to_string(a); }),
                    ")", step.op == kRedistribute ? " to " + dtensor::to_string(step.placements) : "", "\n");
  }
  return text;
}

}  // namespace dtensor::fuzz
