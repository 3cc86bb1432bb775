// Recurrent networks and a state-space layer learn on a mesh what they learn on one device.
#include "examples/models/layouts.h"
#include "examples/models/recurrent.h"
#include "examples/models/state_space.h"
#include "tests/examples/against_one_device.h"

namespace dtensor {
namespace {

using examples::over;

// `Model` of 6 features and 7 of state, whose result is a tuple or the sequence of states; the batch does not divide.
template <class Model>
void check_recurrence(const std::function<Model()>& make) {
  for (const int64_t ranks : {2, 3}) {
    const DeviceMesh mesh(World::local(ranks), {ranks}, {"dp"});
    check_training<Model>(make, nullptr, mesh, {{doubles({5, 4, 6}), {Shard(1)}}}, [](Model& model, const Tensors& in) {
      if constexpr (std::is_same_v<Model, examples::GatedLoop>) {
        return model(in[0]).square().mean();
      } else {
        return std::get<0>(model(in[0])).square().mean();
      }
    });
  }
}

TEST_CASE("recurrent networks whose batch is sharded", "[examples]") {
  check_recurrence<torch::nn::LSTM>([] { return torch::nn::LSTM(torch::nn::LSTMOptions(6, 7).num_layers(2)); });
  check_recurrence<torch::nn::LSTM>([] { return torch::nn::LSTM(torch::nn::LSTMOptions(6, 7).bidirectional(true)); });
  check_recurrence<torch::nn::GRU>([] { return torch::nn::GRU(torch::nn::GRUOptions(6, 7).num_layers(2)); });
  check_recurrence<torch::nn::RNN>([] { return torch::nn::RNN(torch::nn::RNNOptions(6, 7)); });
  check_recurrence<examples::GatedLoop>([] { return examples::GatedLoop(6, 7); });
}

TEST_CASE("a state-space layer on a mesh", "[examples]") {
  examples::StateSpaceConfig c;
  c.width = 8;
  c.channels = 10;
  for (const DeviceMesh& mesh : {DeviceMesh(World::local(2), {2}, {"dp"}), DeviceMesh(World::local(4), {4}, {"tp"}),
                                 DeviceMesh(World::local(6), {3, 2}, {"dp", "tp"})}) {
    check_training<examples::StateSpace>(
        [=] { return examples::StateSpace(c); }, examples::shard_state_space, mesh,
        {{doubles({4, 5, c.width}), over(mesh, "dp", Shard(0))}},
        [](examples::StateSpace& model, const Tensors& in) { return model(in[0]).square().mean(); });
  }
}

}  // namespace
}  // namespace dtensor
