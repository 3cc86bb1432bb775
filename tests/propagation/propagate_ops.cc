#include "tests/propagation/propagate_ops.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "plan/redistribute_plan.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

TORCH_LIBRARY(propagate_test, m) {
  m.def("mm(Tensor a, Tensor b) -> Tensor");
  m.def("add(Tensor a, Tensor b) -> Tensor");
  m.def("addmm(Tensor bias, Tensor a, Tensor b) -> Tensor");
  m.def("mul(Tensor a, Tensor b) -> Tensor");
  m.def("mul_(Tensor(a!) a, Tensor b) -> Tensor(a!)");
  m.def("mul.out(Tensor a, Tensor b, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("normalize(Tensor x, Tensor w) -> Tensor");
  m.def("normalize_(Tensor(a!) x, Tensor w) -> Tensor(a!)");
  m.def("each_(Tensor(a!)[] xs) -> ()");
  m.def("gathers_(Tensor(a!) x) -> Tensor(a!)");
  m.def("unknown(Tensor x) -> Tensor");
  m.def("unruled(Tensor x) -> Tensor");
  m.def("optional(Tensor x, bool second) -> (Tensor, Tensor)");
  m.def("noise(Tensor x) -> Tensor", {at::Tag::pointwise, at::Tag::nondeterministic_seeded});
  m.def("less(Tensor x, Tensor y) -> Tensor", {at::Tag::pointwise});
  m.def("whole(Tensor x) -> Tensor");
  m.def("on(Tensor x, Device? device) -> Tensor");
}

TORCH_LIBRARY_IMPL(propagate_test, Meta, m) {
  m.impl("mm", [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); });
  m.impl("add", [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); });
  m.impl("addmm", [](const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) { return at::addmm(c, a, b); });
  m.impl("mul", [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); });
  m.impl("mul_", [](at::Tensor& a, const at::Tensor& b) -> at::Tensor& { return a.mul_(b); });
  m.impl("mul.out", [](const at::Tensor& a, const at::Tensor& b, at::Tensor& out) -> at::Tensor& {
    return at::mul_out(out, a, b);
  });
  m.impl("normalize", [](const at::Tensor& x, const at::Tensor& w) { return at::mul(x, w); });
  m.impl("optional", [](const at::Tensor& x, bool second) {
    return std::make_tuple(at::empty_like(x), second ? at::empty_like(x) : at::Tensor());
  });
  m.impl("whole", [](const at::Tensor& x) { return at::empty_like(x); });
  m.impl("on", [](const at::Tensor& x, std::optional<c10::Device> device) {
    TORCH_CHECK(!device || device->is_meta());
    return at::empty_like(x);
  });
}

TORCH_LIBRARY_IMPL(propagate_test, CPU, m) {
  m.impl("noise", [](const at::Tensor& x) { return at::rand_like(x); });
  m.impl("less", [](const at::Tensor& x, const at::Tensor& y) { return at::lt(x, y); });
}

namespace dtensor::propagate_ops {
using namespace internal;

void add_rules() {
  static const bool once = [] {
    auto& rules = RuleRegistry::instance();
    auto rule = [](const char* equation, bool linear = true) {
      return factor_op([=](const OpCall& call) { return einsum(call, equation, linear); });
    };
    rules.add("propagate_test::mm", rule("mk,kn->mn"));
    rules.add("propagate_test::add", rule("...+...->..."));
    rules.add("propagate_test::addmm", rule("mn+mk,kn->mn"));
    rules.add("propagate_test::mul", rule("...,...->..."));
    rules.add("propagate_test::normalize", rule("...K,K->...K", false));
    rules.add({"propagate_test::unknown", "propagate_test::optional", "propagate_test::on"},
              factor_op([](const OpCall& call) { return pointwise(call, call.has_arg("second") ? 2 : 1); }));
    OpRule each;
    each.per_dim = [](const OpCall& call, int64_t) {
      const Placements all(call.inputs.size(), Shard(0)), none(call.inputs.size(), Replicate());
      return std::vector<DimStrategy>{{none, none}, {all, all}};
    };
    rules.add("propagate_test::each_", each);
    OpRule gathers;  // could write a part of the result only from all of the input
    gathers.per_dim = [](const OpCall&, int64_t) {
      return std::vector<DimStrategy>{{{Replicate()}, {Replicate()}}, {{Shard(0)}, {Replicate()}}};
    };
    rules.add("propagate_test::gathers_", gathers);
    // On a mesh of two dims: both or none.
    OpRule whole;
    whole.whole = [](const OpCall&) {
      const Placements none = parse_placements("RR").value(), both = parse_placements("S(0)S(1)").value();
      return std::vector<Strategy>{{{none}, {none}}, {{both}, {both}}};
    };
    rules.add("propagate_test::whole", whole);
    rules.set_default_pointwise(factor_op([](const OpCall& call) { return pointwise(call); }));
    return true;
  }();
  (void)once;
}

DeviceMesh mesh_of(std::vector<int64_t> shape) {
  static std::map<std::vector<int64_t>, DeviceMesh> meshes;
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  auto& mesh = meshes[shape];
  if (!mesh.defined()) mesh = DeviceMesh(World::abstract(size), shape);
  return mesh;
}

SpecPtr spec(std::vector<int64_t> mesh, Shape sizes, const std::string& layout, c10::ScalarType dtype) {
  return Spec::get(mesh_of(std::move(mesh)), parse_placements(layout).value(), sizes, dtype);
}

OpCall make(const std::string& op, const std::vector<SpecPtr>& specs, std::vector<c10::IValue> args) {
  add_rules();
  return OpCall::make("propagate_test::" + op, specs, std::move(args));
}

std::string decision(const Decision& plan) {
  auto layouts = [](const std::vector<SpecPtr>& specs) {
    return absl::StrJoin(
        specs, ", ", [](std::string* out, const SpecPtr& s) { out->append(s ? to_string(s->placements()) : "None"); });
  };
  std::string text = absl::StrCat(layouts(plan.computed), " -> ", layouts(plan.outputs));
  for (size_t i = 0; i < plan.input_plans.size(); ++i) {
    if (!plan.input_plans[i]) continue;
    absl::StrAppend(&text, "; ", i, ": ");
    if (plan.input_plans[i]->is_local()) {
      absl::StrAppend(&text, "local");
    } else {
      absl::StrAppend(&text, plan.input_plans[i]->bytes, " B");
    }
  }
  return text;
}

}  // namespace dtensor::propagate_ops
