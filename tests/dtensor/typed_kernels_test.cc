// Typed kernels compute what the boxed kernel computes, and allocate only the result.
#include <ATen/ScalarOps.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/record_function.h>
#include <torch/nn.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/typed_operators.h"
#include "observe/comm_debug_mode.h"
#include "propagation/strategy_cache.h"
#include "tests/dtensor/compared_calls.h"
#include "tests/testing/catch_torch.h"

namespace {

std::atomic<int64_t> allocations{0};

void* allocate(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size > 0 ? size : 1)) return p;
  throw std::bad_alloc();
}

}  // namespace

// Replace the whole program's, so that the allocations of the libraries are counted, too.
void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace dtensor {
using namespace internal;

namespace {

using testing::check_same_metadata;
using testing::Sample;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

using Samples = std::map<std::string, Sample>;

void add_pointwise(Samples& samples) {
  const std::vector<std::vector<int64_t>> one = {{4, 4}}, two = {{4, 4}, {4, 4}}, three = {{4, 4}, {4, 4}, {4, 4}};
  samples["aten::add.Tensor"] = {two, [](Tensors& t) { return t[0].add(t[1], 2); }};
  samples["aten::add.Scalar"] = {one, [](Tensors& t) { return at::_ops::add_Scalar::call(t[0], 3, 2); }};
  samples["aten::add_.Tensor"] = {two, [](Tensors& t) { return t[0].add_(t[1], 2); }};
  samples["aten::sub.Tensor"] = {two, [](Tensors& t) { return t[0].sub(t[1]); }};
  samples["aten::sub_.Tensor"] = {two, [](Tensors& t) { return t[0].sub_(t[1]); }};
  samples["aten::mul.Tensor"] = {two, [](Tensors& t) { return t[0].mul(t[1]); }};
  samples["aten::mul.Scalar"] = {one, [](Tensors& t) { return at::_ops::mul_Scalar::call(t[0], 3); }};
  samples["aten::mul_.Tensor"] = {two, [](Tensors& t) { return t[0].mul_(t[1]); }};
  samples["aten::div.Tensor"] = {two, [](Tensors& t) { return t[0].div(t[1]); }};
  samples["aten::div.Scalar"] = {one, [](Tensors& t) { return at::_ops::div_Scalar::call(t[0], 3); }};
  samples["aten::div_.Tensor"] = {two, [](Tensors& t) { return t[0].div_(t[1]); }};
  samples["aten::add_.Scalar"] = {one, [](Tensors& t) { return at::_ops::add__Scalar::call(t[0], 3, 2); }};
  samples["aten::mul_.Scalar"] = {one, [](Tensors& t) { return at::_ops::mul__Scalar::call(t[0], 3); }};
  samples["aten::div_.Scalar"] = {one, [](Tensors& t) { return at::_ops::div__Scalar::call(t[0], 3); }};
  samples["aten::addcmul_"] = {three, [](Tensors& t) { return t[0].addcmul_(t[1], t[2], 0.5); }};
  samples["aten::addcdiv_"] = {three, [](Tensors& t) { return t[0].addcdiv_(t[1], t[2], 0.5); }};
  samples["aten::lerp_.Scalar"] = {two, [](Tensors& t) { return t[0].lerp_(t[1], 0.5); }};
  samples["aten::relu"] = {one, [](Tensors& t) { return t[0].relu(); }};
  samples["aten::relu_"] = {one, [](Tensors& t) { return t[0].relu_(); }};
  samples["aten::sigmoid"] = {one, [](Tensors& t) { return t[0].sigmoid(); }};
  samples["aten::tanh"] = {one, [](Tensors& t) { return t[0].tanh(); }};
  samples["aten::exp"] = {one, [](Tensors& t) { return t[0].exp(); }};
  samples["aten::neg"] = {one, [](Tensors& t) { return t[0].neg(); }};
  samples["aten::sqrt"] = {one, [](Tensors& t) { return t[0].sqrt(); }};
  samples["aten::rsqrt"] = {one, [](Tensors& t) { return t[0].rsqrt(); }};
  samples["aten::pow.Tensor_Scalar"] = {one, [](Tensors& t) { return t[0].pow(3); }};
  samples["aten::gelu"] = {one, [](Tensors& t) { return at::_ops::gelu::call(t[0], "tanh"); }};
  samples["aten::silu"] = {one, [](Tensors& t) { return at::_ops::silu::call(t[0]); }};
  samples["aten::sigmoid_backward"] = {two, [](Tensors& t) { return at::sigmoid_backward(t[0], t[1]); }};
  samples["aten::tanh_backward"] = {two, [](Tensors& t) { return at::tanh_backward(t[0], t[1]); }};
  samples["aten::gelu_backward"] = {two, [](Tensors& t) { return at::gelu_backward(t[0], t[1], "tanh"); }};
  samples["aten::threshold_backward"] = {two, [](Tensors& t) { return at::threshold_backward(t[0], t[1], 0.5); }};
}

Samples all_samples() {
  Samples samples;
  add_pointwise(samples);
  const std::vector<std::vector<int64_t>> one = {{4, 4}};
  samples["aten::mm"] = {{{4, 4}, {4, 4}}, [](Tensors& t) { return t[0].mm(t[1]); }};
  samples["aten::bmm"] = {{{4, 2, 4}, {4, 4, 2}}, [](Tensors& t) { return t[0].bmm(t[1]); }};
  samples["aten::addmm"] = {{{4, 4}, {4, 4}, {4, 4}}, [](Tensors& t) { return t[0].addmm(t[1], t[2], 2); }};
  samples["aten::sum"] = {one, [](Tensors& t) { return t[0].sum(); }};
  samples["aten::sum.dim_IntList"] = {one, [](Tensors& t) { return t[0].sum({1}, true); }};
  samples["aten::mean"] = {one, [](Tensors& t) { return t[0].mean(); }};
  samples["aten::mean.dim"] = {one, [](Tensors& t) { return t[0].mean({1}); }};
  samples["aten::norm.Scalar"] = {one, [](Tensors& t) { return t[0].norm(); }};
  samples["aten::linalg_vector_norm"] = {
      one, [](Tensors& t) { return at::linalg_vector_norm(t[0], 2, at::IntArrayRef{1}, true); }};
  samples["aten::detach"] = {one, [](Tensors& t) { return t[0].detach(); }};
  samples["aten::view"] = {one, [](Tensors& t) { return t[0].view({4, 2, -1}); }};
  samples["aten::_unsafe_view"] = {one, [](Tensors& t) { return at::_unsafe_view(t[0], {4, 2, -1}); }};
  samples["aten::expand"] = {one, [](Tensors& t) { return t[0].expand({3, 4, 4}); }};
  samples["aten::alias"] = {one, [](Tensors& t) { return t[0].alias(); }};
  samples["aten::t"] = {one, [](Tensors& t) { return t[0].t(); }};
  samples["aten::transpose.int"] = {one, [](Tensors& t) { return t[0].transpose(0, -1); }};
  samples["aten::permute"] = {one, [](Tensors& t) { return t[0].permute({1, 0}); }};
  samples["aten::unsqueeze"] = {one, [](Tensors& t) { return t[0].unsqueeze(1); }};
  return samples;
}

template <typename... Ops>
void add_names(std::vector<std::string>& names, Operators<Ops...>) {
  (names.push_back(c10::toString(c10::OperatorName(Ops::name, Ops::overload_name))), ...);
}

TEST_CASE("every operator with a typed kernel has a sample here", "[dtensor][typed_kernels]") {
  std::vector<std::string> names;
  add_names(names, TypedComputations());
  add_names(names, TypedViews());
  const Samples samples = all_samples();
  CHECK(names.size() == samples.size());
  for (const std::string& name : names) {
    INFO(name);
    CHECK(samples.count(name) == 1);
  }
}

// Inputs of a sample, drawn with the same values at every call. They are no leaves, so that operators may write
// to them.
Tensors inputs_of(const Sample& sample, const DeviceMesh& mesh, const Placement& placement, bool grad,
                  Tensors& leaves) {
  torch::manual_seed(3);
  Tensors inputs;
  for (const auto& sizes : sample.inputs) {
    leaves.push_back(distribute_tensor(torch::rand(sizes) + 0.5, mesh, {placement}).requires_grad_(grad));
    inputs.push_back(leaves.back().mul(1));
  }
  return inputs;
}

struct Outcome {
  Tensor result;
  Tensors inputs, grads;  // inputs after the call
};

Outcome run(const Sample& sample, const DeviceMesh& mesh, const Placement& placement, bool grad) {
  Tensors leaves;
  Outcome o;
  o.inputs = inputs_of(sample, mesh, placement, grad, leaves);
  o.result = sample.call(o.inputs);
  if (!grad || !o.result.requires_grad()) return o;
  o.result.square().sum().backward();
  for (const Tensor& leaf : leaves) o.grads.push_back(leaf.grad());
  return o;
}

void check_same(const Tensor& a, const Tensor& b) {
  REQUIRE(a.defined() == b.defined());
  if (!a.defined()) return;
  check_same_metadata(a, b);
  CHECK((a.grad_fn() ? a.grad_fn()->name() : "") == (b.grad_fn() ? b.grad_fn()->name() : ""));
  const DTensorMeta &x = meta_without_sync(a), &y = meta_without_sync(b);
  CHECK(x.storage->writes.load() == y.storage->writes.load());
  for (size_t r = 0; r < x.locals.size(); ++r) CHECK(torch::equal(x.locals[r], y.locals[r]));
}

TEST_CASE("typed kernels give the results, layouts and gradients of the boxed one", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  for (const auto& [name, sample] : all_samples()) {
    for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      for (const bool grad : {false, true}) {
        INFO(name << " of " << to_string(Placements{placement}) << (grad ? " with gradients" : ""));
        run(sample, mesh, placement, grad);  // decides
        const uint64_t misses = strategy_cache(mesh.world()).stats().misses;
        const Outcome typed = run(sample, mesh, placement, grad);
        CommDebugMode comm;  // observed calls take the boxed kernel
        const Outcome boxed = run(sample, mesh, placement, grad);
        CHECK(strategy_cache(mesh.world()).stats().misses == misses);  // both look up the same key
        check_same(typed.result, boxed.result);
        REQUIRE(typed.grads.size() == boxed.grads.size());
        for (size_t k = 0; k < typed.grads.size(); ++k) check_same(typed.grads[k], boxed.grads[k]);
        for (size_t k = 0; k < typed.inputs.size(); ++k) check_same(typed.inputs[k], boxed.inputs[k]);
      }
    }
  }
}

int64_t allocations_of(const Sample& sample, Tensors& inputs) {
  for (int i = 0; i < 3; ++i) sample.call(inputs);
  const int64_t before = allocations;
  sample.call(inputs);
  return allocations - before;
}

TEST_CASE("a typed kernel allocates its result and nothing else", "[dtensor][typed_kernels]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(1), {1}, {"tp"});
  for (const auto& [name, sample] : all_samples()) {
    if (name == "aten::gelu" || name == "aten::gelu_backward") continue;  // an argument is a string
    INFO(name);
    Tensors plain, leaves;
    for (const auto& sizes : sample.inputs) plain.push_back(torch::rand(sizes));
    Tensors inputs = inputs_of(sample, mesh, Replicate(), /*grad=*/false, leaves);
    // The tensor, its version counter, that it has a layout, layout and memory in one, and the list of its parts; of a
    // view how it was taken, in two.
    const bool writes = name.back() == '_' || name.find("_.") != std::string::npos;
    const bool views = !writes && sample.call(plain).is_alias_of(plain[0]);
    CHECK(allocations_of(sample, inputs) - allocations_of(sample, plain) <= (writes ? 0 : views ? 7 : 5));
  }
}

TEST_CASE("typed kernels find the decisions of boxed ones for every kind of number", "[dtensor][typed_kernels]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(1), {1}, {"tp"});
  const Tensor plain = torch::ones({4, 4}), x = distribute_tensor(plain, mesh, {Replicate()}) * 1;
  for (const at::Scalar& number : std::vector<at::Scalar>{0, 3, -3, 0., -0.5, INFINITY, true, INT64_MAX}) {
    const Sample sample = {{}, [&](Tensors& t) {
                             at::_ops::add_Scalar::call(t[0], 1, number.isBoolean() ? 1 : number);  // kept in the key
                             return at::_ops::div_Scalar::call(t[0], number);
                           }};
    Tensors ours = {x}, theirs = {plain};
    CHECK(allocations_of(sample, ours) - allocations_of(sample, theirs) <= 2 * 5);  // a boxed call takes more
  }
}

// A tensor of a number, as Python passes it for `x + 0.5`.
Tensor of_number(const at::Scalar& number) { return at::native::wrapped_scalar_tensor(number); }

std::map<std::string, std::function<Tensor(const Tensor&, const Tensor&)>> calls_with_numbers() {
  return {{"add", [](const Tensor& x, const Tensor& n) { return at::_ops::add_Tensor::call(x, n, 2); }},
          {"sub", [](const Tensor& x, const Tensor& n) { return at::_ops::sub_Tensor::call(x, n, 1); }},
          {"mul", [](const Tensor& x, const Tensor& n) { return at::_ops::mul_Tensor::call(x, n); }},
          {"div", [](const Tensor& x, const Tensor& n) { return at::_ops::div_Tensor::call(x, n); }},
          {"number first", [](const Tensor& x, const Tensor& n) { return at::_ops::mul_Tensor::call(n, x); }},
          {"mul_", [](const Tensor& x, const Tensor& n) {
             Tensor written = x.clone();
             return at::_ops::mul__Tensor::call(written, n);
           }}};
}

TEST_CASE("typed kernels compute with tensors of numbers what the boxed one does", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const std::vector<at::Scalar> numbers = {2, 0, -3, 0.5, 0., INFINITY, NAN, true};
  for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Partial())}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const Tensor whole = torch::arange(1, 17).view({4, 4}).to(dtype);
      const Tensor x = redistribute(distribute_tensor(whole, mesh), {placement});
      for (const auto& [name, call] : calls_with_numbers()) {
        for (const at::Scalar& number : numbers) {
          if (name == "mul_" && dtype == at::kLong && number.isFloatingPoint()) continue;  // errors of ATen
          if (name == "sub" && number.isBoolean()) continue;
          INFO(name << " of " << number << " to " << dtype << " " << to_string(Placements{placement}));
          call(x, of_number(number));  // decides
          const uint64_t misses = strategy_cache(mesh.world()).stats().misses;
          const Tensor typed = call(x, of_number(number));
          CommDebugMode comm;  // observed calls take the boxed kernel
          const Tensor boxed = call(x, of_number(number));
          CHECK(strategy_cache(mesh.world()).stats().misses == misses);
          const Tensor expected = call(whole, of_number(number));
          CHECK(typed.scalar_type() == expected.scalar_type());
          CHECK(spec_of(typed) == spec_of(boxed));
          CHECK(torch::allclose(full_tensor(typed), expected, 1e-5, 1e-8, /*equal_nan=*/true));
          CHECK(torch::allclose(full_tensor(boxed), expected, 1e-5, 1e-8, /*equal_nan=*/true));
        }
      }
    }
  }
}

TEST_CASE("a tensor of a number takes the typed kernel", "[dtensor][typed_kernels]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(1), {1}, {"tp"});
  const Tensor plain = torch::ones({4, 4}), x = distribute_tensor(plain, mesh, {Replicate()}) * 1;
  for (const auto& [name, call] : calls_with_numbers()) {
    if (name == "number first" || name == "mul_") continue;  // takes the boxed one; a copy does
    for (const at::Scalar& number : std::vector<at::Scalar>{2, 0.5}) {
      INFO(name << " of " << number);
      const Tensor n = of_number(number);
      const Sample sample = {{}, [&call = call, &n](Tensors& t) { return call(t[0], n); }};
      Tensors ours = {x}, theirs = {plain};
      // Three to look the number's layout up; a boxed call takes more.
      CHECK(allocations_of(sample, ours) - allocations_of(sample, theirs) <= 5 + 3);
    }
  }
}

TEST_CASE("numbers of other classes have other decisions", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor x = distribute_tensor(torch::ones({4, 4}), mesh, {Shard(0)}) * 1;
  const StrategyCache& cache = strategy_cache(mesh.world());
  const auto decisions = [&](const at::Scalar& number) {
    const size_t before = cache.stats().size;
    for (int i = 0; i < 2; ++i) at::_ops::div_Scalar::call(x, number);
    return cache.stats().size - before;
  };
  for (const at::Scalar& number : std::vector<at::Scalar>{2, 0, 2., 0., INFINITY}) CHECK(decisions(number) == 1);
  for (const at::Scalar& number : std::vector<at::Scalar>{3, -3.}) CHECK(decisions(number) == 0);
}

TEST_CASE("typed views of slices, transposed and conjugated tensors share their memory", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor whole = torch::rand({4, 4}, torch::kComplexFloat);
  const Tensor x = distribute_tensor(whole, mesh, {Replicate()});
  for (int i = 0; i < 2; ++i) {  // boxed, then typed
    CHECK(torch::equal(full_tensor(x.conj().detach()), whole.conj()));
    CHECK(torch::equal(full_tensor(x.conj().view({4, 2, 2})), whole.conj().view({4, 2, 2})));
    CHECK(torch::equal(full_tensor(x.t().detach()), whole.t()));
    for (const Tensor& rows : {x.slice(0, 1, 3).detach(), x.slice(0, 1, 3).view({2, 2, 2})}) {
      CHECK(DTensor(rows).local(0).data_ptr() == DTensor(x).local(0)[1].data_ptr());
    }
  }
}

TEST_CASE("parts of typed views have the strides that ATen gives them, also of dims of size 1 and of empty parts",
          "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  const auto check = [&](const std::vector<Tensor>& given, const Placement& placement, const auto& view) {
    const Tensor t = from_local(given, mesh, {placement});
    for (int i = 0; i < 2; ++i) {  // the second call is a typed one
      const Tensor result = view(t);
      const internal::RankTensors &parts = internal::meta_without_sync(t).locals,
                                  &views = internal::meta_without_sync(result).locals;
      for (size_t r = 0; r < parts.size(); ++r) {
        const Tensor expected = view(parts[r]);
        CAPTURE(i, r, given[r].sizes(), given[r].strides());
        CHECK(views[r].sizes() == expected.sizes());
        CHECK(views[r].strides() == expected.strides());
        CHECK(views[r].suggest_memory_format() == expected.suggest_memory_format());
        CHECK(views[r].storage_offset() == expected.storage_offset());
      }
    }
  };
  const auto detached = [](const Tensor& t) { return t.detach(); };
  const auto as_it_is = [](const Tensor& t) { return t.view(t.sizes()); };
  const auto both = [](const Tensor& part) { return std::vector<Tensor>{part, part}; };
  const Tensor images = torch::rand({4, 3, 5, 1}).permute({0, 3, 1, 2});  // channels-last
  for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0))}) {
    check(both(images), placement, detached);
    check(both(images), placement, as_it_is);
    check(both(torch::rand({1, 4}).t()), placement, detached);
    check(both(torch::rand({6, 2, 2, 3, 1})), placement, as_it_is);
    check(both(torch::rand({0, 3})), placement, detached);
  }
  check({torch::rand({1, 3}), torch::rand({0, 3})}, Shard(0), detached);
  check(both(torch::rand({})), Replicate(), detached);

  const auto t = [](const Tensor& x) { return x.t(); };
  const auto transposed = [](const Tensor& x) { return x.transpose(-1, 0); };
  const auto permuted = [](const Tensor& x) { return x.permute({1, -1, 0, 2}); };
  const auto turned = [](const Tensor& x) { return x.transpose(0, 1).permute({-1, 0, 1}).transpose(2, -3); };
  for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0))}) {
    check(both(images), placement, permuted);
    check(both(images.narrow(0, 1, 2)), placement, transposed);
    check(both(torch::rand({1, 4}).t()), placement, t);
    check(both(torch::rand({3, 4}, torch::kComplexFloat)), placement, [](const Tensor& x) { return x.conj().t(); });
    check(both(torch::rand({2, 3, 4})), placement, turned);
    check(both(torch::rand({0, 3})), placement, t);
    check(both(torch::rand({5})), placement, t);
    check(both(torch::rand({5})), placement, transposed);
  }
  check({torch::rand({1, 3}), torch::rand({0, 3})}, Shard(0), transposed);
  for (const auto& view : {+[](const Tensor& x) { return x.t(); }, +[](const Tensor& x) { return x.transpose(0, -1); },
                           +[](const Tensor& x) { return x.permute(at::IntArrayRef()); }})
    check(both(torch::rand({})), Replicate(), view);
}

TEST_CASE("a typed permutation calls no operator for the parts", "[dtensor][typed_kernels]") {
  const Tensor x = distribute_tensor(torch::rand({2, 3}), DeviceMesh(World::local(2), {2}, {"dp"}), {Shard(0)});
  int calls = 0;
  thread_local int* counter = nullptr;
  counter = &calls;
  const auto counting = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        ++*counter;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  const auto count = [&](const auto& permute) {
    permute();
    calls = 0;
    permute();
    return calls;
  };
  CHECK(count([&] { x.t(); }) == 1);
  CHECK(count([&] { x.transpose(0, 1); }) == 1);
  CHECK(count([&] { x.permute({1, 0}); }) == 1);
  at::removeCallback(counting);
}

TEST_CASE("a typed permutation with invalid dims has ATen's error, also after valid calls",
          "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"dp"});
  const Tensor x = distribute_tensor(torch::rand({2, 3, 4}), mesh, {Shard(0)});
  for (int i = 0; i < 2; ++i) {
    x.transpose(0, 1);
    x.permute({2, 0, 1});
  }
  CHECK_THROWS_WITH(x.transpose(0, 3), Catch::Contains("Dimension out of range"));
  CHECK_THROWS_WITH(x.permute({0, 0, 1}), Catch::Contains("repeat") || Catch::Contains("duplicate"));
  CHECK_THROWS_WITH(x.t(), Catch::Contains("expects a tensor with <= 2 dimensions"));
}

TEST_CASE("a typed view of a part that the program resized is an error", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(1), {1}, {"dp"});
  const Tensor t = distribute_tensor(torch::rand({4, 4}), mesh, {Replicate()});
  t.view({16});
  mutable_local_tensors(t)[0].resize_({2});
  CHECK_THROWS_WITH(t.view({16}), Catch::Contains("is invalid for input of size 2"));
  const Tensor turned = distribute_tensor(torch::rand({4, 4}), mesh, {Replicate()});
  turned.t();
  mutable_local_tensors(turned)[0].resize_({2});
  CHECK_THROWS_WITH(turned.t(), Catch::Contains("number of dimensions"));
}

TEST_CASE("a write through the result of a typed view reaches its base", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor x = zeros({4, 4}, mesh, {Shard(0)}, {.requires_grad = true});
  for (int i = 0; i < 2; ++i) {
    const Tensor base = x.mul(1);
    base.view({4, 2, 2}).transpose(1, 2).detach().fill_(2);
    base.view({4, 2, 2}).permute({2, 0, 1}).unsqueeze(0).mul_(3);
    CHECK(torch::equal(full_tensor(base.detach()), torch::full({4, 4}, 6.f)));
    base.sum().backward();
  }
  CHECK(torch::equal(full_tensor(x.grad()), torch::full({4, 4}, 6.f)));
}

// Until its destruction it is the hook, and records whether the first argument of the first call is Partial.
class FirstCall final : public CallHook {
 public:
  FirstCall() : usual_(std::exchange(registered, this)) { ++num_watching; }
  ~FirstCall() override {
    --num_watching;
    registered = usual_;
  }
  FirstCall(const FirstCall&) = delete;
  FirstCall& operator=(const FirstCall&) = delete;

  Tensor defer(const GradientCall&) override { return {}; }
  std::function<void()> before_call(const OpInfo&, c10::ArrayRef<c10::IValue> args) override {
    if (!is_partial) is_partial = spec_of(args[0].toTensor())->has_partial();
    return nullptr;
  }
  void before_write(const Tensor&) override {}
  void before_unseen_writes(const LocalStorage&) override {}

  std::optional<bool> is_partial;

 private:
  CallHook* const usual_;
};

TEST_CASE("a write to a parameter calls the hook before the parameter is reduced", "[dtensor][typed_kernels]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor p = distribute_tensor(torch::ones({4, 4}), mesh, {Shard(0)}).sum(0).requires_grad_();
  const Tensor two = distribute_tensor(torch::full({4}, 2.f), mesh, {Replicate()});
  REQUIRE(spec_of(p)->has_partial());
  FirstCall first;
  p.add_(two);
  CHECK(first.is_partial == true);
  CHECK(torch::equal(full_tensor(p), torch::full({4}, 6.f)));
}

TEST_CASE("changing the sizes of a detached tensor leaves its base", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor whole = torch::rand({4, 3});
  for (int i = 0; i < 2; ++i) {
    const Tensor base = distribute_tensor(whole, mesh, {Shard(0)}), detached = base.detach();
    detached.t_().unsqueeze_(0);
    CHECK(torch::equal(full_tensor(detached), whole.t().unsqueeze(0)));
    CHECK(torch::equal(full_tensor(base), whole));
  }
}

TEST_CASE("the parts of a detached tensor have handles of their own", "[dtensor][typed_kernels]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor x = zeros({4, 6}, mesh, {Shard(0)});
  for (int call = 0; call < 2; ++call) {  // boxed, then typed
    const Tensor y = x.detach();
    DTensor(y).local(0).t_();
    CHECK(DTensor(x).local(0).sizes() == torch::IntArrayRef({2, 6}));
  }
}

}  // namespace
}  // namespace dtensor
