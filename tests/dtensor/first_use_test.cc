// Unsupported first uses of a distributed tensor: the error names the call to use instead.
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <sstream>

#include "checkpoint/serialize.h"
#include "dtensor/distribute_module.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::error_text;
using torch::Tensor;

const DeviceMesh& two_ranks() {
  static const DeviceMesh m(World::local(2), {2}, {"tp"});
  return m;
}

Tensor sharded(const Tensor& t) { return distribute_tensor(t, two_ranks(), {Shard(0)}); }

void check_says_distributed(const std::string& text) {
  INFO(text);
  CHECK_THAT(text, Catch::Contains("a distributed tensor, whose data is in the local tensors of its ranks"));
  for (const char* instead : {"full_tensor(t)", "to_local(t)", "DTensor(t)", "save(t, path)"}) {
    CHECK_THAT(text, Catch::Contains(instead));
  }
}

}  // namespace

TEST_CASE("first use: data access fails with a text that the tensor is distributed") {
  torch::nn::Linear made(3, 4), given(3, 4);
  distribute_module(*made, two_ranks());
  given->weight.set_data(sharded(given->weight.detach()));
  const Tensor result = sharded(torch::ones({4, 3})) + 1;
  const Tensor whole_numbers = sharded(torch::ones({4, 3}, torch::kLong)) * 2;
  for (const Tensor& t : {made->weight, made->bias, given->weight, result, whole_numbers, result.detach(),
                          made->weight.detach(), result.select(1, 0), result.to(torch::kDouble)}) {
    std::ostringstream stream;
    check_says_distributed(error_text([&] { stream << t; }));
    check_says_distributed(error_text([&] { t.data_ptr(); }));
    check_says_distributed(error_text([&] { t.const_data_ptr(); }));
    check_says_distributed(error_text([&] { t.storage(); }));
    check_says_distributed(error_text([&] { torch::save(t, stream); }));
  }
  check_says_distributed(error_text([&] { result.accessor<float, 2>(); }));
  check_says_distributed(error_text([&] { result.data_ptr<float>(); }));
  check_says_distributed(error_text([&] { made->weight.packed_accessor64<float, 2>(); }));
  std::ostringstream stream;
  check_says_distributed(error_text([&] { torch::save(made, stream); }));
  check_says_distributed(error_text([&] { torch::save(std::vector<Tensor>{result}, stream); }));
  CHECK_FALSE(result.has_storage());
  CHECK(torch::equal(full_tensor(result), torch::full({4, 3}, 2.f)));  // unchanged
}

TEST_CASE("first use: a plain tensor next to distributed ones gives one text with the remedies") {
  const Tensor x = sharded(torch::ones({4, 3})), plain = torch::ones({4, 3});
  const Tensor rows = torch::tensor({0, 2});
  const std::vector<std::function<void()>> calls = {
      [&] { x + plain; },
      [&] { torch::mm(x, plain.t()); },
      [&] { torch::equal(x, plain); },
      [&] { torch::allclose(x, plain); },
      [&] { x.index({rows}); },
      [&] {
        torch::cat({x, plain});
      },
      [&] { torch::where(plain > 0, x, x); },
      [&] { x.clone().copy_(plain); },
      [&] { x.clone().masked_fill_(plain > 0, 1); },
  };
  for (const auto& call : calls) {
    const std::string text = error_text(call);
    INFO(text);
    CHECK_THAT(text, Catch::Contains("is a plain tensor of shape"));
    CHECK_THAT(text, Catch::Contains("distribute_tensor(t, mesh"));
    CHECK_THAT(text, Catch::Contains("MeshScope(mesh)"));
    CHECK_THAT(text, Catch::Contains("ImplicitReplication"));
  }
  CHECK_THAT(error_text([&] { x.clone().copy_(plain); }), Catch::Contains("load_state_dict(module, values)"));
}

TEST_CASE("first use: torch::load into distributed parameters") {
  const std::string path =
      std::string(std::getenv("TEST_TMPDIR") != nullptr ? std::getenv("TEST_TMPDIR") : "/tmp") + "/first_use_load.pt";
  torch::nn::Linear source(3, 4), target(3, 4);
  torch::save(source, path);
  distribute_module(*target, two_ranks(), [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
    shard_parameter(m, "weight", on, {Shard(0)});
  });
  const auto check = [&](const auto& call) {
    const std::string text = error_text(call);
    INFO(text);
    for (const char* part : {"a distributed tensor", "torch::load()", "dtensor::load(module, path)",
                             "dtensor::load_state_dict(module, values)", "distribute_tensor(t, mesh, placements)"}) {
      CHECK_THAT(text, Catch::Contains(part));
    }
  };
  check([&] { torch::load(target, path); });
  CHECK_THAT(error_text([&] { torch::load(target, path); }), Catch::Contains("'weight'"));
  check([&] { target->weight.set_data(torch::ones({4, 3})); });
  check([&] {
    torch::NoGradGuard no_grad;
    MeshScope inside(two_ranks());
    torch::load(target, path);
  });
  const Tensor one = sharded(torch::zeros({4, 3}));
  std::stringstream stream;
  torch::save(torch::ones({4, 3}), stream);
  check([&] {
    Tensor t = one;
    torch::load(t, stream);
  });
  for (const Tensor& p : target->parameters()) CHECK(is_dtensor(p));  // unchanged
  load(*target, path);
  CHECK(torch::equal(full_tensor(target->weight), source->weight));
  CHECK(to_string(spec_of(target->weight)->placements()) == "S(0)");
  // set_data() with a distributed tensor, and a plain one into a plain one.
  target->weight.set_data(sharded(torch::ones({4, 3})));
  source->weight.set_data(torch::ones({4, 3}));
  source->weight.set_data(sharded(torch::ones({4, 3})));
}

TEST_CASE("first use: an optimizer made before the module was distributed") {
  const auto step = [](auto& optimizer, torch::nn::Linear& linear) {
    const Tensor w = linear->weight;
    const Tensor x = is_dtensor(w) ? distribute_tensor(torch::ones({2, 3}), two_ranks()) : torch::ones({2, 3});
    optimizer.zero_grad();
    linear(x).sum().backward();
    optimizer.step();
  };
  const auto check = [&](auto optimizer, torch::nn::Linear linear, bool steps) {
    if (steps) step(optimizer, linear);
    distribute_module(*linear, two_ranks());
    const std::string text = error_text([&] { step(optimizer, linear); });
    INFO(text);
    CHECK_THAT(text, Catch::Contains("The state of an optimizer"));
    CHECK_THAT(text, Catch::Contains("before distribute_module()"));
  };
  torch::nn::Linear a(3, 4), b(3, 4), c(3, 4), d(3, 4);
  check(torch::optim::Adam(a->parameters(), 0.1), a, true);
  check(torch::optim::SGD(b->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)), b, true);
  check(torch::optim::Adagrad(c->parameters(), 0.1), c, false);
  // Without state it works.
  torch::optim::SGD plain(d->parameters(), 0.1);
  step(plain, d);
  distribute_module(*d, two_ranks());
  CHECK(error_text([&] { step(plain, d); }) == "");
}

TEST_CASE("first use: plain values assigned to distributed parameters") {
  torch::nn::Linear linear(3, 4), source(3, 4);
  distribute_module(*linear, two_ranks(), [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
    shard_parameter(m, "weight", on, {Shard(0)});
  });
  load_state_dict(*linear, state_dict(*source));
  CHECK(torch::equal(full_tensor(linear->weight), source->weight));
  CHECK(to_string(meta_for_read(linear->weight).spec->placements()) == "S(0)");
  {
    torch::NoGradGuard no_grad;
    ImplicitReplication same_everywhere;
    linear->weight.copy_(source->weight * 2);
  }
  CHECK(torch::equal(full_tensor(linear->weight), source->weight * 2));
}

}  // namespace dtensor
