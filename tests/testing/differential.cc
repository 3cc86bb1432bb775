#include "tests/testing/differential.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "comm/scope.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "placement/geometry.h"
#include "placement/parse_placements.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/partial_kind.h"

namespace dtensor::testing {
using namespace internal;

namespace {

struct CollectiveCounter : CommListener {
  void on_comm(const CommEvent& event, bool before) override {
    if (!before)
      seen += (seen.empty() ? "" : ", ") + std::string(to_string(event.collective)) + " for " + event.cause.op;
  }
  std::string seen;
};

at::Generator& generator() {
  static at::Generator g = at::detail::createCPUGenerator(20260401);
  return g;
}

at::Tensor random_like(const at::Tensor& t) {
  if (at::isIntegralType(t.scalar_type(), false)) {
    return at::randint(-3, 4, t.sizes(), generator(), t.scalar_type()).to(t.device());
  }
  return at::rand(t.sizes(), generator(), t.scalar_type()).to(t.device()).mul(2).sub(1);
}

std::vector<at::Tensor> make_addends(const at::Tensor& full, const PartialKind& kind) {
  if (kind.addends == 1) return {full};
  std::vector<at::Tensor> addends(kind.addends);
  if (kind.op == ReduceOp::kSum) {
    at::Tensor rest = full * kind.divisor;
    for (int64_t a = 1; a < kind.addends; ++a) {
      addends[a] = random_like(full);
      rest = rest - addends[a];
    }
    addends[0] = rest;
  } else if (kind.op == ReduceOp::kProduct) {
    at::Tensor rest = full;
    for (int64_t a = 1; a < kind.addends; ++a) {
      addends[a] = random_like(full).abs() + 0.5;
      rest = rest / addends[a];
    }
    addends[0] = rest;
  } else if (kind.op == ReduceOp::kNorm2) {
    for (at::Tensor& a : addends) a = full / std::sqrt(static_cast<double>(kind.addends));
  } else {
    // A rank, another one for each element, holds the extreme value.
    const at::Tensor owner = at::randint(kind.addends, full.sizes(), generator(), at::kLong).to(full.device());
    const double sign = kind.op == ReduceOp::kMax ? -1 : 1;
    for (int64_t a = 0; a < kind.addends; ++a) {
      addends[a] = at::where(owner == a, full, full + random_like(full).abs() * sign);
    }
  }
  return addends;
}

at::Tensor reduce(const std::vector<at::Tensor>& addends, const PartialKind& kind) {
  at::Tensor value = addends[0];
  for (size_t a = 1; a < addends.size(); ++a) {
    switch (kind.op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        value = value + addends[a];
        break;
      case ReduceOp::kProduct:
        value = value * addends[a];
        break;
      case ReduceOp::kMin:
        value = value.minimum(addends[a]);
        break;
      case ReduceOp::kMax:
        value = value.maximum(addends[a]);
        break;
      case ReduceOp::kNorm2:
        value = at::where(value.isnan() | addends[a].isnan(), value + addends[a],  // hypot(infinity, nan) is infinity
                          at::where(value == 0, addends[a], value.sgn() * value.hypot(addends[a])));
        break;
    }
  }
  return kind.divisor == 1 ? value : value / kind.divisor;
}

std::string first_difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  const auto a = actual.contiguous().view(-1), e = expected.contiguous().view(-1);
  for (int64_t k = 0; k < a.numel(); ++k) {
    if (!a[k].allclose(e[k], tolerance, tolerance, true)) {
      std::ostringstream os;
      os << "element " << k << " of " << a.numel() << " is " << a[k].item() << ", should be " << e[k].item();
      return os.str();
    }
  }
  return "differs";
}

std::vector<Placement> options_of(const at::Tensor& t, const OpCase& c) {
  std::vector<Placement> options = {Replicate()};
  for (int64_t d = 0; d < t.dim(); ++d) options.push_back(Shard(d));
  if (c.strided_inputs) {
    for (int64_t d = 0; d < t.dim(); ++d) options.push_back(StridedShard(d, 2));
  }
  if (c.partial_inputs && (t.is_floating_point() || t.is_complex())) {
    options.push_back(Partial());
    for (ReduceOp op : c.more_partials) options.push_back(Partial(op));
  }
  return options;
}

// Every combination of layouts of the inputs on the mesh, or a sample of at most `limit`.
std::vector<std::vector<Placements>> combinations(const std::vector<at::Tensor>& inputs, const OpCase& c,
                                                  const DeviceMesh& mesh, size_t limit) {
  std::vector<std::vector<Placements>> layouts;  // per input
  size_t count = 1;
  for (const auto& t : inputs) {
    std::vector<Placements> all = {{}};
    for (int64_t d = 0; d < mesh.ndim(); ++d) {
      std::vector<Placements> longer;
      for (const auto& prefix : all) {
        for (const auto& p : options_of(t, c)) {
          auto next = prefix;
          next.push_back(p);
          if (normalize_placements(next, t.dim()).ok()) longer.push_back(next);
        }
      }
      all = std::move(longer);
    }
    count *= all.size();
    layouts.push_back(std::move(all));
  }
  std::set<size_t> chosen;
  std::mt19937_64 random(7 + mesh.size());  // other ones on each mesh
  if (count <= limit) {
    for (size_t k = 0; k < count; ++k) chosen.insert(k);
  } else {
    while (chosen.size() < limit) chosen.insert(random() % count);
  }
  std::vector<std::vector<Placements>> result;
  for (size_t k : chosen) {
    std::vector<Placements> combination;
    for (const auto& options : layouts) {
      combination.push_back(options[k % options.size()]);
      k /= options.size();
    }
    result.push_back(std::move(combination));
  }
  return result;
}

bool wants_grad(const OpCase& c, const std::vector<at::Tensor>& inputs, size_t i) {
  return c.grad.empty() ? inputs[i].is_floating_point() || inputs[i].is_complex() : c.grad[i];
}

void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  torch::autograd::variable_list roots, seeds;
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!outputs[k].defined() || !outputs[k].requires_grad()) continue;
    roots.push_back(outputs[k]);
    seeds.push_back(gradients[k]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
}

struct Expected {
  std::vector<at::Tensor> inputs;  // values
  std::vector<at::Tensor> outputs, seeds, grads;
};

Expected run_plain(const OpCase& c) {
  Expected e;
  for (size_t i = 0; i < c.shapes.size(); ++i) {
    e.inputs.push_back(c.make ? c.make(i, c.shapes[i])
                              : at::rand(c.shapes[i], generator(), at::TensorOptions(at::kDouble)).mul(2).sub(1));
    e.inputs.back() = e.inputs.back().to(test_device());
  }
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < e.inputs.size(); ++i) {
    leaves.push_back(e.inputs[i].clone());
    if (wants_grad(c, e.inputs, i)) leaves.back().requires_grad_();
  }
  e.outputs = c.fn(leaves);
  for (const auto& o : e.outputs) {
    e.seeds.push_back(o.defined() && o.requires_grad() ? random_like(o.detach()).contiguous() : at::Tensor());
  }
  backward(e.outputs, e.seeds);
  for (const auto& leaf : leaves) e.grads.push_back(leaf.grad());
  return e;
}

// How the gradient of an output arrives; `turn` goes through the kinds.
Placements seed_layout(const at::Tensor& output, size_t turn) {
  auto placements = meta_for_read(output).spec->placements();
  for (auto& p : placements) {
    if (turn % 3 == 1 || (turn % 3 == 0 && p.is_partial())) p = Replicate();
    if (turn % 3 == 2) p = Partial();
  }
  return placements;
}

std::optional<std::string> run_distributed(const OpCase& c, const Expected& e, const DeviceMesh& mesh,
                                           const std::vector<Placements>& layouts, size_t turn) {
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < e.inputs.size(); ++i) {
    leaves.push_back(lay_out(e.inputs[i], mesh, layouts[i]));
    if (wants_grad(c, e.inputs, i)) leaves.back().requires_grad_();
  }
  const bool must_throw = c.rejects && c.rejects(layouts);
  std::vector<at::Tensor> outputs;
  CollectiveCounter counter;
  try {
    ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&counter); });
    outputs = c.fn(leaves);
  } catch (const c10::Error& error) {
    if (must_throw) return std::nullopt;
    return std::string("forward throws: ") + error.what_without_backtrace();
  }
  if (must_throw) return "should be refused";
  if (mesh.ndim() == 1 && c.silent && !counter.seen.empty()) {
    std::vector<Placement> along;
    for (const auto& l : layouts) along.push_back(l[0]);
    if (c.silent(along)) return "should not communicate, but did: " + counter.seen;
  }
  if (outputs.size() != e.outputs.size()) return "number of outputs is " + std::to_string(outputs.size());
  std::vector<at::Tensor> seeds;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const auto where = "output " + std::to_string(k) + ": ";
    if (outputs[k].defined() != e.outputs[k].defined()) return where + "defined on one side only";
    seeds.emplace_back();
    if (!outputs[k].defined()) continue;
    if (auto wrong = difference(outputs[k], e.outputs[k], c.tolerance)) return where + *wrong;
    if (outputs[k].requires_grad() != e.outputs[k].requires_grad()) return where + "requires_grad differs";
    if (outputs[k].requires_grad()) seeds.back() = lay_out(e.seeds[k], mesh, seed_layout(outputs[k], turn));
  }
  try {
    backward(outputs, seeds);
  } catch (const c10::Error& error) {
    return std::string("backward throws: ") + error.what_without_backtrace();
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto where = "gradient of input " + std::to_string(i) + ": ";
    if (leaves[i].grad().defined() != e.grads[i].defined()) return where + "defined on one side only";
    if (!e.grads[i].defined()) continue;
    if (auto wrong = difference(leaves[i].grad(), e.grads[i], c.tolerance)) return where + *wrong;
  }
  return std::nullopt;
}

}  // namespace

c10::Device test_device() {
  const char* const name = std::getenv("DTENSOR_TEST_DEVICE");
  return name == nullptr ? c10::Device(c10::kCPU) : c10::Device(name);
}

const std::vector<DeviceMesh>& test_meshes() {
  static const auto* meshes = new std::vector<DeviceMesh>{
      DeviceMesh(World::local(4, test_device()), {4}), DeviceMesh(World::local(4, test_device()), {2, 2}),
      DeviceMesh(World::local(3, test_device()), {3}), DeviceMesh(World::local(6, test_device()), {2, 3})};
  return *meshes;
}

at::Tensor part_of(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements, int64_t i) {
  const Shape shape(full.sizes().begin(), full.sizes().end());
  const auto layout = local_layout(shape, mesh.shape(), placements, mesh.local_coordinate(i));
  at::Tensor part = full;
  for (int64_t d = 0; d < full.dim(); ++d) {
    std::vector<at::Tensor> runs;
    for (const IndexRange& run : layout.dims[d]) runs.push_back(part.narrow(d, run.begin, run.size));
    part = runs.empty() ? part.narrow(d, 0, 0) : at::cat(runs, d);
  }
  return part.clone(at::MemoryFormat::Contiguous);
}

at::Tensor lay_out(const at::Tensor& full, const DeviceMesh& mesh, const Placements& given) {
  const auto placements = normalize_placements(given, full.dim()).value();
  const auto addends = make_addends(full.detach(), partial_kind(mesh, placements));
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
    const at::Tensor part = part_of(addends[addend_index(mesh, placements, i)], mesh, placements, i);
    locals.push_back(part.to(mesh.world().device(mesh.local_ranks()[i])));
  }
  FromLocalOptions options;
  options.shape = full.sizes().vec();
  return from_local(locals, mesh, placements, options).detach();
}

std::vector<at::Tensor> call_op(const std::string& name, std::vector<c10::IValue> args) {
  const size_t dot = name.find('.');
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
  torch::jit::Stack stack = std::move(args);
  for (size_t a = stack.size(); a < op.schema().arguments().size(); ++a) {
    const auto& argument = op.schema().arguments()[a];
    stack.push_back(argument.default_value() ? *argument.default_value() : c10::IValue());
  }
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const auto& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) results.push_back(t);
    }
  }
  return results;
}

std::optional<std::string> difference(const at::Tensor& actual, const at::Tensor& expected_with_grad,
                                      double tolerance) {
  const at::Tensor given = expected_with_grad.detach(), expected = given.cpu();
  std::ostringstream os;
  if (!is_dtensor(actual)) return "is a plain tensor";
  if (actual.sizes() != expected.sizes()) os << "sizes " << actual.sizes() << ", should be " << expected.sizes();
  if (actual.scalar_type() != expected.scalar_type()) {
    os << "dtype " << actual.scalar_type() << ", should be " << expected.scalar_type();
  }
  if (given.is_contiguous() && given.numel() > 0 && actual.strides() != given.strides()) {
    os << "strides " << actual.strides() << ", should be " << given.strides();
  }
  if (!os.str().empty()) return os.str();

  const auto& meta = meta_for_read(actual);
  const auto& placements = meta.spec->placements();
  const auto& mesh = meta.spec->mesh();
  const auto kind = partial_kind(mesh, placements);
  std::map<std::vector<int64_t>, std::vector<at::Tensor>> by_place;  // coordinate off the Partial dims -> addends
  std::map<std::vector<int64_t>, int64_t> rank_of;
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    const auto& local = meta.locals[i];
    const auto shape = meta.spec->local_shape(i);
    if (local.sizes() != at::IntArrayRef(shape.data(), shape.size()) || local.scalar_type() != expected.scalar_type()) {
      os << "rank " << i << " holds " << local.scalar_type() << local.sizes() << ", the layout " << placements
         << " says " << at::IntArrayRef(shape.data(), shape.size());
      return os.str();
    }
    std::vector<int64_t> place;
    for (int64_t d = 0; d < mesh.ndim(); ++d)
      place.push_back(placements[d].is_partial() ? 0 : mesh.local_coordinate(i)[d]);
    by_place[place].push_back(local.cpu());
    rank_of[place] = i;
  }
  if (kind.addends > 1 &&
      static_cast<int64_t>(mesh.local_ranks().size()) < mesh.size()) {  // the others are in other processes
    auto reduced = placements;
    for (Placement& p : reduced) {
      if (p.is_partial()) p = Replicate();
    }
    const auto wrong = difference(redistribute(actual.detach(), reduced), expected, tolerance);
    return wrong ? std::optional("reduced from " + to_string(placements) + ": " + *wrong) : std::nullopt;
  }
  for (const auto& [place, addends] : by_place) {
    const auto value = reduce(addends, kind);
    const auto want = part_of(expected, mesh, placements, rank_of[place]);
    if (value.allclose(want, tolerance, tolerance, true)) continue;
    os << "laid out " << placements << ", on rank " << rank_of[place] << " "
       << first_difference(value, want, tolerance);
    return os.str();
  }
  return std::nullopt;
}

// In the short form one mesh of each number of dims: (4) and (2, 3), or (3) and (2, 2), by the case's name.
static std::vector<DeviceMesh> meshes_of(const OpCase& c) {
  const auto& all = test_meshes();
  if (long_tests()) return all;
  return std::accumulate(c.name.begin(), c.name.end(), 0) % 2 == 0 ? std::vector{all[0], all[3]}
                                                                   : std::vector{all[2], all[1]};
}

// At most.
static size_t combinations_on(const DeviceMesh& mesh, size_t max_2d) {
  if (long_tests()) return mesh.ndim() > 1 ? max_2d : SIZE_MAX;
  return mesh.ndim() > 1 ? std::min<size_t>(max_2d, 32) : 40;
}

void check_op(const OpCase& c, int max_2d) {
  Expected expected;
  try {
    expected = run_plain(c);
  } catch (const c10::Error& error) {
    if (test_device().is_cpu()) throw;
    WARN("left out on " << test_device() << ": " << c.name << ": " << error.what_without_backtrace());
    return;
  }
  int failures = 0;
  for (const auto& mesh : meshes_of(c)) {
    const size_t limit = combinations_on(mesh, max_2d);
    size_t turn = 0;
    for (const auto& layouts : combinations(expected.inputs, c, mesh, limit)) {
      const auto wrong = run_distributed(c, expected, mesh, layouts, turn++);
      if (!wrong) continue;
      std::ostringstream os;
      os << c.name << " on " << mesh.to_string() << " with";
      for (const auto& l : layouts) os << " " << l;
      os << " (gradient " << (turn - 1) % 3 << "): " << *wrong;
      FAIL_CHECK(os.str());
      if (++failures == 4) return;
    }
  }
  SUCCEED(c.name);
}

}  // namespace dtensor::testing
