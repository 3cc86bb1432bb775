// Random pieces of models, as in hand-written programs, on distributed tensors and on plain ones: equal values and
// gradients, equal communication for any order of the statements, and the same communication on every rank.
//
// DTENSOR_FUZZ_SEED and DTENSOR_FUZZ_PROGRAMS choose other pieces, and more of them.
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/fuzz/pieces.h"
#include "tests/fuzz/random.h"
#include "tests/fuzz/rank_calls.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

Tensor whole(const Tensor& t) {
  const at::NoGradGuard no_grad;
  return is_dtensor(t) ? full_tensor(t) : t;
}

// Values that must be equal for plain and distributed tensors.
Tensors values_and_gradients(const Tensors& values, const Tensors& parameters) {
  Tensors result;
  for (const Tensor& t : values) result.push_back(whole(t.detach()).clone());
  for (const Tensor& p : parameters) result.push_back(whole(p.grad()).clone());
  return result;
}

void check_alike(const Tensors& distributed, const Tensors& plain) {
  REQUIRE(distributed.size() == plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(i);
    CHECK(torch::allclose(distributed[i], plain[i], 1e-9, 1e-11));
  }
}

const std::vector<DeviceMesh>& meshes() {
  static const std::vector<DeviceMesh> all{DeviceMesh(World::local(4), {4}, {"a"}),
                                           DeviceMesh(World::local(3), {3}, {"a"}),
                                           DeviceMesh(World::local(4), {2, 2}, {"a", "b"})};
  return all;
}

// On every rank alone, for which the others are zeros: no number that `piece` reads may decide about its calls.
void check_ranks_agree(const std::function<Tensors(Pieces&)>& piece, uint64_t seed, const DeviceMesh& mesh) {
  std::vector<std::string> calls;
  for (const DeviceMesh& of_rank : mesh_of_each_rank(mesh.shape())) {
    Pieces pieces(seed, of_rank, true);
    CommDebugMode comm;
    piece(pieces);
    calls.push_back(text_of_calls(comm));
    CAPTURE(calls.size() - 1);
    CHECK(calls.back() == calls.front());
  }
}

// Runs `piece` for one seed after another, on plain and on distributed tensors.
void try_all(const std::function<Tensors(Pieces&)>& piece) {
  const uint64_t seed = number_from_env("DTENSOR_FUZZ_SEED", 1), most = number_from_env("DTENSOR_FUZZ_PROGRAMS", 60);
  for (uint64_t index = 0; index < most; ++index) {
    const DeviceMesh& mesh = meshes()[index % meshes().size()];
    CAPTURE(seed, index, mesh.to_string());
    const uint64_t of_piece = seed * 1'000'003 + index;
    Pieces plain(of_piece, mesh, false), distributed(of_piece, mesh, true);
    const Tensors expected = piece(plain);
    check_alike(piece(distributed), expected);
    check_ranks_agree(piece, of_piece, mesh);
  }
}

// ---- Statements in any order ----

using Values = std::map<std::string, Tensor>;
struct Statement {
  std::string result;
  std::vector<std::string> reads;
  std::function<Tensor(Values&)> compute;
};
using Statements = std::vector<Statement>;

// Normalisations of the last dim of "x" into "y", written in several ways.
const std::vector<Statements>& norms() {
  static const std::vector<Statements> all = {
      {{"m", {"x"}, [](Values& v) { return v["x"].mean(-1, true); }},
       {"v", {"x"}, [](Values& v) { return v["x"].var(-1, false, true); }},
       {"c", {"x", "m"}, [](Values& v) { return v["x"] - v["m"]; }},
       {"s", {"v"}, [](Values& v) { return torch::sqrt(v["v"] + 1e-5); }},
       {"y", {"c", "s"}, [](Values& v) { return v["c"] / v["s"]; }}},
      {{"m", {"x"}, [](Values& v) { return v["x"].mean(-1, true); }},
       {"m2", {"m"}, [](Values& v) { return v["m"] * v["m"]; }},
       {"x2", {"x"}, [](Values& v) { return v["x"] * v["x"]; }},
       {"q", {"x2"}, [](Values& v) { return v["x2"].mean(-1, true); }},
       {"v", {"q", "m2"}, [](Values& v) { return v["q"] - v["m2"]; }},
       {"c", {"x", "m"}, [](Values& v) { return v["x"] - v["m"]; }},
       {"y", {"c", "v"}, [](Values& v) { return v["c"] * torch::rsqrt(v["v"] + 1e-5); }}},
      {{"m", {"x"}, [](Values& v) { return v["x"].sum(-1, true) / v["x"].size(-1); }},
       {"v", {"x"}, [](Values& v) { return v["x"].var(-1, false, true); }},
       {"c", {"x", "m"}, [](Values& v) { return v["x"] - v["m"]; }},
       {"y", {"c", "v"}, [](Values& v) { return v["c"] / (v["v"] + 1e-5).sqrt(); }}},
      {{"q", {"x"}, [](Values& v) { return v["x"].pow(2).mean(-1, true); }},
       {"r", {"q"}, [](Values& v) { return torch::rsqrt(v["q"] + 1e-5); }},
       {"a", {"x"}, [](Values& v) { return v["x"].abs().amax(-1, true); }},
       {"y", {"x", "r", "a"}, [](Values& v) { return v["x"] * v["r"] / (v["a"] + 1); }}},
      {{"m", {"x"}, [](Values& v) { return v["x"].mean(-1, true); }},
       {"s", {"x"}, [](Values& v) { return v["x"].std(-1, true, true); }},
       {"c", {"x", "m"}, [](Values& v) { return v["x"] - v["m"]; }},
       {"y", {"c", "s"}, [](Values& v) { return v["c"] / (v["s"] + 1e-5); }}},
      {{"t", {"x"}, [](Values& v) { return v["x"] * 2; }},
       {"m", {"t"}, [](Values& v) { return v["t"].amax(-1, true); }},
       {"e", {"t", "m"}, [](Values& v) { return torch::exp(v["t"] - v["m"]); }},
       {"z", {"e"}, [](Values& v) { return v["e"].sum(-1, true); }},
       {"l", {"z", "m"}, [](Values& v) { return torch::log(v["z"]) + v["m"]; }},
       {"p", {"e", "z"}, [](Values& v) { return v["e"] / v["z"]; }},
       {"y", {"p", "l"}, [](Values& v) { return v["p"] + v["l"]; }}},
  };
  return all;
}

// An order in which no value is read before it is computed.
Statements shuffled(Statements left, std::mt19937_64& random) {
  Statements order;
  std::set<std::string> known{"x"};
  while (!left.empty()) {
    std::vector<size_t> ready;
    for (size_t k = 0; k < left.size(); ++k) {
      const auto& reads = left[k].reads;
      if (std::all_of(reads.begin(), reads.end(), [&](const auto& name) { return known.count(name) > 0; }))
        ready.push_back(k);
    }
    const auto it = left.begin() + static_cast<int64_t>(ready[random() % ready.size()]);
    known.insert(it->result);
    order.push_back(std::move(*it));
    left.erase(it);
  }
  return order;
}

std::string text_of(const Statements& order) {
  std::string text;
  for (const Statement& s : order) text += s.result + " ";
  return text;
}

TEST_CASE("random models: the order of a norm's statements changes neither values nor communication",
          "[fuzz][models]") {
  const uint64_t seed = number_from_env("DTENSOR_FUZZ_SEED", 1), most = number_from_env("DTENSOR_FUZZ_PROGRAMS", 60);
  for (uint64_t index = 0; index < most; ++index) {
    const DeviceMesh mesh(World::local(4), {4}, {"tp"});
    const Statements& norm = norms()[index % norms().size()];
    std::vector<int64_t> calls;  // forward and backward of the first order
    std::string first;
    Tensors expected;
    for (int order = 0; order < 4; ++order) {
      Pieces pieces(seed * 1'000'003 + index, mesh, order > 0);  // first on plain tensors
      const int64_t rows = pieces.number(2, 6), width = pieces.number(2, 4) * 4;
      const Tensor h = pieces.parameter({rows, 3, width}, {Shard(2)}), w = pieces.parameter({width, width}, {Shard(1)}),
                   g = pieces.parameter({width}, {Replicate()}), b = pieces.parameter({width}, {Replicate()}),
                   next = pieces.parameter({width, width}, {Shard(0)});
      std::mt19937_64 choice(index * 10 + static_cast<uint64_t>(order));
      const Statements statements = shuffled(norm, choice);
      CAPTURE(seed, index, text_of(statements), first);
      CommDebugMode comm;
      Values values{{"x", torch::linear(h, w)}};
      for (const Statement& s : statements) values[s.result] = s.compute(values);
      const Tensor y = torch::linear(values["y"] * g + b, next).relu();
      const int64_t forward = comm.total();
      y.sum().backward();
      const std::vector<int64_t> now{forward, comm.total() - forward};
      const Tensors result = values_and_gradients({y}, {h, w, g, b, next});
      if (order == 0) {
        expected = result;
        continue;
      }
      check_alike(result, expected);
      if (calls.empty()) calls = now, first = text_of(statements);
      CHECK(now == calls);
    }
  }
}

// ---- One parameter, many times ----

Tensor activation(int64_t which, const Tensor& t) {
  return which == 0 ? torch::tanh(t) : which == 1 ? torch::sigmoid(t) : which == 2 ? torch::gelu(t) : t * 0.5;
}

TEST_CASE("random models: loops over one parameter have the values and gradients of plain tensors", "[fuzz][models]") {
  try_all([](Pieces& pieces) {
    const int64_t rows = pieces.number(1, 9), width = pieces.number(3, 9), steps = pieces.number(2, 6);
    const Tensor w = pieces.parameter({width, width}, pieces.placements(2)),
                 u = pieces.parameter({width, width}, pieces.placements(2)),
                 b = pieces.parameter({width}, pieces.placements(1));
    Tensor x = pieces.tensor({rows, width}, pieces.placements(2));
    Tensor state = pieces.coin() ? torch::zeros_like(x) : x;
    Tensors states;
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t way = pieces.number(0, 3);
      const Tensor sum = way == 0   ? torch::linear(state, w, b)
                         : way == 1 ? state.mm(w) + torch::linear(x, u)
                         : way == 2 ? torch::addmm(b, state, w.t())
                                    : torch::linear(state, w) * torch::sigmoid(torch::linear(x, u, b));
      state = activation(pieces.number(0, 3), sum);
      if (pieces.coin()) states.push_back(state);
    }
    states.push_back(state);
    torch::cat(states).pow(2).mean().backward();
    Tensors reached;
    for (const Tensor& p : {w, u, b}) {
      if (p.grad().defined()) reached.push_back(p);
    }
    return values_and_gradients({state}, reached);
  });
}

// ---- Leaves made of results ----

TEST_CASE("random models: leaves made of results train as on plain tensors", "[fuzz][models]") {
  try_all([](Pieces& pieces) {
    const int64_t rows = pieces.number(2, 7), inner = pieces.number(2, 7), width = pieces.number(2, 7);
    const Tensor a = pieces.tensor({rows, inner}, pieces.placements(2)),
                 b = pieces.tensor({inner, width}, pieces.placements(2));
    const std::vector<std::function<Tensor()>> makes{
        [&] { return a.mm(b); },   [&] { return a.norm(2, 1, true); }, [&] { return a.sum(0); },
        [&] { return a.amax(1); }, [&] { return a.t().mm(a); },        [&] { return a.mean(1, true) * 2; },
        [&] { return b.prod(0); }, [&] { return a.mm(b).exp(); },      [&] { return b.sum(0) - b.mean(0); },
    };
    Tensor leaf = makes[static_cast<size_t>(pieces.number(0, static_cast<int64_t>(makes.size()) - 1))]().detach();
    if (pieces.coin()) {
      const Tensor made = leaf;
      leaf = torch::zeros(made.sizes(), torch::kDouble).requires_grad_();
      leaf.set_data(made);
    } else {
      leaf.requires_grad_();
    }
    torch::optim::SGD optimizer({leaf}, torch::optim::SGDOptions(0.1).momentum(pieces.coin() ? 0.9 : 0));
    Tensor loss;
    for (int64_t step = pieces.number(1, 3); step > 0; --step) {
      if (pieces.coin()) optimizer.zero_grad(pieces.coin());
      loss = pieces.coin() ? (leaf * leaf).sum() : (leaf.sin() * 3).mean();
      loss.backward();
      if (pieces.coin()) torch::nn::utils::clip_grad_norm_({leaf}, 0.5);
      optimizer.step();
      if (pieces.distributed()) CHECK(DTensor(leaf.grad()).placements() == DTensor(leaf).placements());
      if (pieces.distributed()) CHECK_FALSE(DTensor(leaf).spec().has_partial());
    }
    return values_and_gradients({loss, leaf}, {leaf});
  });
}

// ---- Packed sequences ----

// Gives the module's parameters the values of the plain ones, replicated if tensors are distributed.
template <typename Module>
Module filled(Module module, Pieces& pieces) {
  module->to(torch::kDouble);
  for (auto& p : module->parameters()) {
    p.set_data(pieces.tensor(p.sizes().vec(), pieces.all(Replicate())) * 0.5);
  }
  return module;
}

template <typename Module>
Tensors run_packed(Module module, const Pieces& pieces, const Tensor& x, const Tensor& lengths, bool batch_first,
                   bool sorted) {
  namespace rnn = torch::nn::utils::rnn;
  std::optional<MeshScope> scope;  // the first state is made in forward
  if (pieces.distributed()) scope.emplace(pieces.mesh());
  const auto packed = rnn::pack_padded_sequence(x, lengths, batch_first, sorted);
  const auto [output, state] = module->forward_with_packed_input(packed);
  const auto [padded, sizes] = rnn::pad_packed_sequence(output, batch_first);
  padded.pow(2).sum().backward();
  Tensors values{padded, sizes};
  if constexpr (std::is_same_v<std::decay_t<decltype(state)>, Tensor>) {
    values.push_back(state);
  } else {
    values.push_back(std::get<0>(state));
    values.push_back(std::get<1>(state));
  }
  return values_and_gradients(values, module->parameters());
}

TEST_CASE("random models: recurrent layers on packed sequences equal plain ones", "[fuzz][models]") {
  try_all([](Pieces& pieces) {
    const int64_t batch = pieces.number(1, 9), width = pieces.number(2, 5), hidden = pieces.number(2, 5);
    const bool batch_first = pieces.coin(), sorted = pieces.coin(), both_ways = pieces.coin();
    std::vector<int64_t> lengths;
    for (int64_t k = 0; k < batch; ++k) lengths.push_back(pieces.number(1, 6));
    if (sorted) std::sort(lengths.rbegin(), lengths.rend());
    const int64_t most = *std::max_element(lengths.begin(), lengths.end());
    Placements placements = pieces.all(Replicate());
    placements[0] = Shard(batch_first ? 0 : 1);
    const Tensor x = pieces.tensor(
        batch_first ? std::vector<int64_t>{batch, most, width} : std::vector<int64_t>{most, batch, width}, placements);
    const int64_t layers = pieces.number(1, 2);
    if (pieces.coin()) {
      const auto options =
          torch::nn::LSTMOptions(width, hidden).num_layers(layers).bidirectional(both_ways).batch_first(batch_first);
      return run_packed(filled(torch::nn::LSTM(options), pieces), pieces, x, torch::tensor(lengths), batch_first,
                        sorted);
    }
    const auto options =
        torch::nn::GRUOptions(width, hidden).num_layers(layers).bidirectional(both_ways).batch_first(batch_first);
    return run_packed(filled(torch::nn::GRU(options), pieces), pieces, x, torch::tensor(lengths), batch_first, sorted);
  });
}

}  // namespace
}  // namespace dtensor::fuzz
