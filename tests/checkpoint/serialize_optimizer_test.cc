// In which order the state of an optimizer is gathered: every process of a job must take the same one.
#include <torch/optim.h>

#include "checkpoint/serialize.h"
#include "dtensor/factories.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::TempFolder;

const DeviceMesh& two_ranks() {
  static const DeviceMesh m(World::local(2), {2}, {"x"});
  return m;
}

// Parameters of 2, 4, 6, ... elements, in two groups, that have been made in another order.
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(int n, int stride) {
  std::vector<torch::Tensor> parameters(n);
  for (int i = 0; i < n; ++i) {
    const int place = (i * stride) % n;
    parameters[place] = full({2 * (place + 1)}, 1.0, two_ranks(), {Shard(0)}).requires_grad_();
    parameters[place].mutable_grad() = full({2 * (place + 1)}, place + 1.0, two_ranks(), {Shard(0)});
  }
  const auto middle = parameters.begin() + n / 2;
  return {{{parameters.begin(), middle}}, {{middle, parameters.end()}}};
}

}  // namespace

TEST_CASE("serialize_optimizer: states are gathered in the order of the param_groups") {
  const TempFolder folder;
  constexpr int kParameters = 12;
  for (const int stride : {1, 5, 7, 11}) {
    torch::optim::Adam optimizer(parameter_groups(kParameters, stride), torch::optim::AdamOptions(0.1));
    optimizer.step();
    CommDebugMode comm;
    save(optimizer, folder / "o.pt");
    std::vector<int64_t> bytes, expected;
    for (const CommEvent& e : comm.events()) bytes.push_back(e.bytes);
    for (int i = 0; i < kParameters; ++i) expected.insert(expected.end(), 2, (i + 1) * 4);  // exp_avg and exp_avg_sq
    CHECK(bytes == expected);
  }
}

TEST_CASE("serialize_optimizer: state of a parameter that is in no group is an error") {
  const TempFolder folder;
  torch::optim::Adam optimizer(parameter_groups(4, 1), torch::optim::AdamOptions(0.1));
  optimizer.step();
  optimizer.param_groups()[1].params().pop_back();
  CHECK_THAT(testing::error_text([&] { save(optimizer, folder / "o.pt"); }),
             Catch::Contains("in none of its param_groups"));
}

}  // namespace dtensor
