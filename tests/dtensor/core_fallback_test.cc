// LibTorch's announced fallback at the key of distributed tensors, simulated by this program: it is registered before
// the library is loaded, as LibTorch's would be. So the program is not linked with the library, and calls it through
// its operators.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dlfcn.h>
#include <torch/library.h>

#include "tests/testing/catch_torch.h"

namespace {

using c10::DispatchKey;
using c10::IValue;

int64_t core_calls = 0;

// Computes below the key, and returns fake tensors for fake inputs.
void core_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  ++core_calls;
  c10::impl::ExcludeDispatchKeyGuard below(DispatchKey::Fake);
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&core_fallback>()); }

IValue call(const char* name, torch::jit::Stack stack) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  op.callBoxed(stack);
  return stack.empty() ? IValue() : stack.back();
}

// Loads the library once, and makes a mesh of two ranks.
int64_t mesh() {
  static const int64_t handle = [] {
    void* library = dlopen("./libdtensor.so", RTLD_NOW | RTLD_GLOBAL);
    const char* why = dlerror();
    INFO((why != nullptr ? why : ""));
    REQUIRE(library != nullptr);
    return call("dtensor::init_local_mesh",
                {c10::List<int64_t>({2}), c10::List<std::string>({"x"}), IValue(std::optional<c10::Device>())})
        .toInt();
  }();
  return handle;
}

at::Tensor distribute(const at::Tensor& t, const char* placements) {
  return call("dtensor::distribute", {t, mesh(), std::string(placements)}).toTensor();
}
std::string placements(const at::Tensor& t) { return call("dtensor::placements", {t}).toStringRef(); }
bool is_dtensor(const at::Tensor& t) { return call("dtensor::is_dtensor", {t}).toBool(); }
at::Tensor full(const at::Tensor& t) { return call("dtensor::full_tensor", {t}).toTensor(); }

// Like LibTorch's own fake tensors since 2.13: with the first key of distributed tensors, not the second.
at::Tensor cores_fake() {
  const at::Tensor plain = at::ones({4});
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(plain.storage()), plain.key_set() | c10::DispatchKeySet(DispatchKey::Fake), plain.dtype());
  impl->set_sizes_contiguous({4});
  return at::Tensor(std::move(impl));
}

}  // namespace

TEST_CASE("describe_dispatch_key names LibTorch's own fallback at the key") {
  mesh();
  using Describe = std::string (*)();
  const auto describe = reinterpret_cast<Describe>(dlsym(RTLD_DEFAULT, "_ZN7dtensor21describe_dispatch_keyB5cxx11Ev"));
  REQUIRE(describe != nullptr);
  CHECK(describe().find("Fake: LibTorch 2.") == 0);
  CHECK(describe().find("'s own fallback runs calls without distributed tensors") != std::string::npos);
}

TEST_CASE("calls with distributed tensors do not reach LibTorch's fallback") {
  const at::Tensor x = distribute(at::ones({4, 6}), "S(0)");
  const at::Tensor w = distribute(at::ones({6, 2}), "R");
  const int64_t before = core_calls;
  const at::Tensor y = at::mm(x, w);
  CHECK(placements(y) == "S(0)");
  CHECK(full(y).equal(at::ones({4, 2}) * 6));
  CHECK(core_calls == before);
}

TEST_CASE("LibTorch's fake tensors reach LibTorch's fallback and are not distributed") {
  mesh();
  const at::Tensor fake = cores_fake();
  CHECK_FALSE(is_dtensor(fake));
  const int64_t before = core_calls;
  CHECK(at::add(fake, 1).sum().item<float>() == 8);
  CHECK(core_calls > before);
}

TEST_CASE("LibTorch's fake mode reaches LibTorch's fallback, also for calls without tensors") {
  mesh();
  const int64_t before = core_calls;
  const c10::impl::IncludeDispatchKeyGuard cores_mode(DispatchKey::Fake);
  const at::Tensor made = at::zeros({3});
  CHECK(core_calls > before);
  CHECK_FALSE(is_dtensor(made));
}

TEST_CASE("in a MeshScope factories make distributed tensors and plain ones compute as usual") {
  const at::Tensor plain = at::ones({3});
  const int64_t handle = mesh();
  const int64_t before = core_calls;
  call("dtensor::enter_mesh_scope", {handle});
  const at::Tensor made = at::zeros({3});
  const at::Tensor sum = at::add(plain, plain);
  call("dtensor::leave_scope", {std::string("mesh_scope")});
  CHECK(is_dtensor(made));
  CHECK(placements(made) == "R");
  CHECK_FALSE(is_dtensor(sum));
  CHECK(core_calls == before);
}

TEST_CASE("LibTorch's fake tensor in a MeshScope still reaches LibTorch's fallback") {
  const int64_t handle = mesh();
  const at::Tensor fake = cores_fake();
  const int64_t before = core_calls;
  call("dtensor::enter_mesh_scope", {handle});
  const at::Tensor sum = at::add(fake, fake);
  call("dtensor::leave_scope", {std::string("mesh_scope")});
  CHECK_FALSE(is_dtensor(sum));
  CHECK(core_calls > before);
}
