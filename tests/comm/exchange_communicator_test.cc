// The primitive under all collectives: blocks from inputs to outputs, in place.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <random>
#include <tuple>

#include "comm/communicator.h"
#include "comm/communicator_checks.h"
#include "comm/scope.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

using Catch::Contains;

namespace dtensor {
using namespace internal;

namespace {

at::Tensor part(at::Tensor t, const Shape& offsets, const Shape& sizes) {
  for (size_t d = 0; d < sizes.size(); ++d) t = t.narrow(static_cast<int64_t>(d), offsets[d], sizes[d]);
  return t;
}

void sort_messages(std::vector<Message>& messages) {
  std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver, a.input) < std::tie(b.sender, b.receiver, b.input);
  });
}

SizesOfRanks sizes_of(const RankPieces& pieces) {
  SizesOfRanks sizes;
  for (const auto& of_rank : pieces) {
    auto& list = sizes.emplace_back();
    for (const at::Tensor& t : of_rank) list.emplace_back(t.sizes().begin(), t.sizes().end());
  }
  return sizes;
}

int64_t bytes_of(const Message& m, int64_t item) {
  for (int64_t size : m.block.sizes) item *= size;
  return item;
}

// A world of 6 ranks in groups of 3, in an unusual order; every rank has two inputs and two outputs of [6, 5].
struct Setup {
  DeviceMesh mesh{World::local(6), {2, 3}, {"dp", "tp"}, {5, 0, 3, 2, 1, 4}};
  CommCall call = call_on(mesh, {1});
  RankPieces inputs, outputs;

  explicit Setup(at::ScalarType first = at::kDouble, at::ScalarType second = at::kFloat) {
    for (int64_t rank : call.ranks) {
      inputs.push_back({values({6, 5}, first, rank), values({5, 6}, second, rank + 10).t()});
      outputs.push_back({at::full({6, 5}, 1, first), at::full({6, 5}, 1, second)});
    }
  }
  const std::vector<int64_t>& group(int64_t rank) const { return call.group->members[call.group->group_of[rank]]; }
  int64_t slot(int64_t rank) const {
    return std::find(call.ranks.begin(), call.ranks.end(), rank) - call.ranks.begin();
  }
  Communicator& communicator() { return mesh.world().communicator(); }
};

TEST_CASE("exchange writes every block to its place and nothing else", "[mesh][exchange]") {
  std::mt19937 random(5);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  for (int round = 0; round < 20; ++round) {
    Setup s;
    RankPieces expected;
    for (const auto& of_rank : s.outputs) expected.push_back({of_rank[0].clone(), of_rank[1].clone()});
    std::vector<Message> messages;
    std::vector<int64_t> received(6, 0);
    for (int64_t receiver : s.call.ranks) {
      for (int64_t output : {0, 1}) {
        for (int64_t row = 0; row < 6;
             row += 2) {  // two rows of every output from somewhere, some of them from nowhere
          if (draw(5) == 0) continue;
          const auto& group = s.group(receiver);
          Message m{
              group[draw(3)], receiver, output, output, {{draw(4), draw(2)}, {row, draw(2)}, {1 + draw(2), draw(5)}}};
          messages.push_back(m);
          part(expected[s.slot(receiver)][output], m.block.to, m.block.sizes)
              .copy_(part(s.inputs[s.slot(m.sender)][m.input], m.block.from, m.block.sizes));
          if (m.sender != receiver) received[s.slot(receiver)] += bytes_of(m, output == 0 ? 8 : 4);
        }
      }
    }
    sort_messages(messages);
    Recorder recorder;
    {
      ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
      s.communicator().exchange(s.call, Collective::kPermute, messages, s.inputs, s.outputs);
    }
    for (size_t i = 0; i < 6; ++i) {
      for (size_t k = 0; k < 2; ++k) CHECK(at::equal(s.outputs[i][k], expected[i][k]));
      CHECK(at::equal(s.inputs[i][0], values({6, 5}, at::kDouble, s.call.ranks[i])));
    }
    REQUIRE(recorder.events.size() == 2);
    CHECK(recorder.events[1].first.collective == Collective::kPermute);
    CHECK(recorder.events[0].first.received_bytes == -1);
    CHECK(recorder.events[1].first.received_bytes == *std::max_element(received.begin(), received.end()));
  }
}

TEST_CASE("reduce_scatter reads and writes blocks in place", "[mesh][exchange]") {
  for (auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    for (auto half : {at::kHalf, at::kBFloat16}) {
      Setup s(at::kDouble, half);
      // Position p of a group gets columns [p, p + 1) of both inputs, in two blocks, from rows 1-3 and 4-5 into rows
      // 0-2, 3-4.
      std::vector<Message> messages;
      for (int64_t sender : s.call.ranks) {
        for (int64_t receiver : s.group(sender)) {
          const int64_t p = s.call.group->position_of[receiver];
          for (int64_t k : {0, 1}) {
            messages.push_back({sender, receiver, k, k, {{1, p}, {0, 2}, {3, 1}}});
            messages.push_back({sender, receiver, k, k, {{4, p}, {3, 2}, {2, 1}}});
          }
        }
      }
      sort_messages(messages);
      Recorder recorder;
      {
        ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
        s.communicator().reduce_scatter(s.call, messages, s.inputs, s.outputs, op);
      }
      for (size_t i = 0; i < 6; ++i) {
        const int64_t p = s.call.group->position_of[s.call.ranks[i]];
        for (int64_t k : {0, 1}) {
          CAPTURE(to_string(op), half, i, k);
          at::Tensor sum;
          for (int64_t member : s.group(s.call.ranks[i])) {
            at::Tensor addend = s.inputs[s.slot(member)][k].narrow(0, 1, 5).narrow(1, p, 1);
            if (k == 1) addend = addend.to(at::kFloat);
            if (!sum.defined()) {
              sum = addend.clone();
            } else {
              sum = op == ReduceOp::kProduct ? sum * addend
                    : op == ReduceOp::kMin   ? sum.minimum(addend)
                    : op == ReduceOp::kMax   ? sum.maximum(addend)
                                             : sum + addend;
            }
          }
          if (op == ReduceOp::kAvg) sum = sum / 3;
          at::Tensor expected = at::full({6, 5}, 1, s.outputs[i][k].options());
          expected.narrow(0, 0, 5).narrow(1, 2, 1).copy_(sum);
          CHECK(at::equal(s.outputs[i][k], expected));
        }
      }
      // A rank puts 3 columns of 5 into each reduction.
      REQUIRE(recorder.events.size() == 2);
      CHECK(recorder.events[1].first.received_bytes == (15 * 8) * 2 / 3 + (15 * 2) * 2 / 3);
    }
  }
}

TEST_CASE("reduce_scatter by blocks adds in the order of the group", "[mesh][exchange]") {
  const DeviceMesh mesh(World::local(4), {4}, {}, {2, 0, 3, 1});
  const auto call = call_on(mesh, {0});
  // In this order, and in few others, the float32 sum is 1.
  const float addends[] = {1e8f, 1.f, -1e8f, 1.f};
  RankPieces inputs, outputs;
  std::vector<Message> messages;
  for (size_t i = 0; i < 4; ++i) {
    inputs.push_back({at::full({4}, addends[i])});
    outputs.push_back({at::zeros({1})});
    for (int64_t p = 0; p < 4; ++p) messages.push_back({call.ranks[i], call.ranks[p], 0, 0, {{p}, {0}, {1}}});
  }
  sort_messages(messages);
  mesh.world().communicator().reduce_scatter(call, messages, inputs, outputs, ReduceOp::kSum);
  for (const auto& output : outputs) CHECK(output[0].item<float>() == 1.f);
}

TEST_CASE("many tensors are reduced in one collective", "[mesh][exchange]") {
  Setup s(at::kDouble, at::kBFloat16);
  for (auto& of_rank : s.inputs) of_rank.push_back(values({3}, at::kLong, 4));
  const auto before = collectives_issued();
  Recorder recorder;
  RankPieces sums;
  {
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
    sums = s.communicator().all_reduce_many(s.call, s.inputs, ReduceOp::kSum);
  }
  CHECK(collectives_issued()[static_cast<size_t>(Collective::kAllReduce)] ==
        before[static_cast<size_t>(Collective::kAllReduce)] + 1);
  REQUIRE(recorder.events.size() == 2);
  CHECK(recorder.events[1].first.received_bytes == 2 * 240 * 2 / 3 + 2 * 60 * 2 / 3 + 2 * 24 * 2 / 3);
  REQUIRE(sums.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    REQUIRE(sums[i].size() == 3);
    for (size_t k = 0; k < 3; ++k) {
      RankTensors addends;
      for (int64_t member : s.group(s.call.ranks[i])) addends.push_back(s.inputs[s.slot(member)][k]);
      const auto expected =
          at::stack(addends).to(k == 1 ? at::kFloat : addends[0].scalar_type()).sum(0).to(addends[0].scalar_type());
      CHECK(sums[i][k].scalar_type() == addends[0].scalar_type());
      CHECK(at::equal(sums[i][k], expected));
      CHECK(sums[i][k].is_contiguous());
      for (size_t j = 0; j < 6; ++j) {
        CHECK_FALSE(sums[i][k].is_alias_of(s.inputs[j][k]));
        CHECK((i == j || !sums[i][k].is_alias_of(sums[j][k])));
      }
    }
  }
  for (const auto& none : s.communicator().all_reduce_many(s.call, RankPieces(6), ReduceOp::kSum)) CHECK(none.empty());
}

TEST_CASE("a fake world copies its rank's own data and clears what others would send", "[mesh][exchange]") {
  const DeviceMesh mesh(World::fake(3, 1), {3}, {"tp"});
  const auto call = call_on(mesh, {0});
  const RankPieces inputs = {{values({2, 3}, at::kFloat, 1)}}, outputs = {{at::full({4, 3}, 7.f)}};
  const std::vector<Message> messages = {{0, 1, 0, 0, {{0, 0}, {0, 0}, {1, 3}}},
                                         {1, 0, 0, 0, {{0, 0}, {0, 0}, {2, 3}}},
                                         {1, 1, 0, 0, {{1, 1}, {1, 0}, {1, 2}}},
                                         {2, 1, 5, 0, {{9, 9}, {2, 1}, {2, 2}}}};  // rank 2's data is unknown
  Recorder recorder;
  {
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
    mesh.world().communicator().exchange(call, Collective::kAllToAll, messages, inputs, outputs);
  }
  auto expected = at::full({4, 3}, 7.f);
  expected.narrow(0, 0, 1).zero_();
  expected.narrow(0, 1, 1).narrow(1, 0, 2).copy_(inputs[0][0].narrow(0, 1, 1).narrow(1, 1, 2));
  expected.narrow(0, 2, 2).narrow(1, 1, 2).zero_();
  CHECK(at::equal(outputs[0][0], expected));
  CHECK(recorder.events.at(1).first.received_bytes == (3 + 4) * 4);

  const RankPieces part = {{at::full({1, 3}, 9.f)}};
  const std::vector<Message> addends = {{0, 1, 0, 0, {{1, 0}, {0, 0}, {1, 3}}},
                                        {1, 0, 0, 0, {{0, 0}, {0, 0}, {1, 3}}},
                                        {1, 1, 0, 0, {{1, 0}, {0, 0}, {1, 3}}},
                                        {2, 1, 0, 0, {{1, 0}, {0, 0}, {1, 3}}}};
  {
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
    mesh.world().communicator().reduce_scatter(call, addends, inputs, part, ReduceOp::kSum);
    mesh.world().communicator().all_reduce_many(call, inputs, ReduceOp::kSum);
  }
  CHECK(at::equal(part[0][0], inputs[0][0].narrow(0, 1, 1)));
  CHECK(recorder.events.at(3).first.received_bytes == 24 * 2 / 3);
  CHECK(recorder.events.at(5).first.received_bytes == 2 * 24 * 2 / 3);
}

TEST_CASE("messages that do not fit are errors before anything moves", "[mesh][exchange]") {
  const Block ok{{0, 0}, {0, 0}, {2, 2}};
  const auto error_of = [](std::vector<Message> messages, bool reduce = false) {
    Setup s;
    std::string text;
    Recorder recorder;
    ScopeGuard guard([&](Scope& scope) { scope.listeners.push_back(&recorder); });
    try {
      if (reduce) {
        s.communicator().reduce_scatter(s.call, messages, s.inputs, s.outputs, ReduceOp::kSum);
      } else {
        s.communicator().exchange(s.call, Collective::kAllToAll, messages, s.inputs, s.outputs);
      }
    } catch (const c10::Error& e) {
      text = e.what_without_backtrace();
    }
    CHECK(recorder.events.empty());
    for (const auto& of_rank : s.outputs) CHECK(at::equal(of_rank[0], at::full({6, 5}, 1, at::kDouble)));
    // Plans check their messages before there are tensors, which have one dtype.
    const Collective c = reduce ? Collective::kReduceScatter : Collective::kAllToAll;
    if (text.find("dtype") == std::string::npos) {
      CHECK_THROWS_WITH(check_messages(c, s.call, messages, sizes_of(s.inputs), sizes_of(s.outputs)), Contains(text));
    }
    return text;
  };
  const Message good{0, 3, 0, 0, ok};  // the groups are {5, 0, 3} and {2, 1, 4}
  CHECK_THAT(error_of({good, {0, 1, 0, 0, ok}}),
             Contains("all_to_all: a message goes from rank 0 to rank 1, which are in no common group"));
  CHECK_THAT(error_of({good, {0, 7, 0, 0, ok}}), Contains("from rank 0 to rank 7, which are in no common group of tp"));
  CHECK_THAT(error_of({{3, 0, 0, 0, ok}, good}),
             Contains("follows one from rank 3 to rank 0; order messages by sender"));
  CHECK_THAT(error_of({{0, 3, 2, 0, ok}}), Contains("names input 2 of rank 0, which passes 2"));
  CHECK_THAT(error_of({{0, 3, 0, -1, ok}}), Contains("names output -1 of rank 3, which passes 2"));
  CHECK_THAT(error_of({{0, 3, 0, 1, ok}}),
             Contains("input 0 of rank 0 of dtype Double to output 1 of rank 3 of dtype Float"));
  CHECK_THAT(error_of({{0, 3, 0, 0, {{5, 0}, {0, 0}, {2, 2}}}}),
             Contains("has a block of shape [2, 2] at [5, 0] of input 0 of rank 0, whose shape is [6, 5]"));
  CHECK_THAT(error_of({{0, 3, 0, 0, {{0, 0}, {0, 4}, {2, 2}}}}),
             Contains("at [0, 4] of output 0 of rank 3, whose shape is [6, 5]"));
  CHECK_THAT(error_of({{0, 3, 0, 0, {{0, 0}, {-1, 0}, {2, 2}}}}), Contains("at [-1, 0] of output 0"));
  CHECK_THAT(error_of({{0, 3, 0, 0, {{0}, {0}, {2}}}}), Contains("has a block of shape [2] at [0] of input 0"));
  CHECK_THAT(error_of({good, {5, 3, 0, 0, {{0, 0}, {1, 0}, {2, 2}}}}, true),
             Contains("reduce_scatter: ranks 0 and 5 send different blocks to rank 3"));

  Setup s;
  auto& comm = s.communicator();
  const std::vector<Message> fits = {good};
  CHECK_NOTHROW(check_messages(Collective::kAllToAll, s.call, fits, sizes_of(s.inputs), sizes_of(s.outputs)));
  CHECK_THROWS_WITH(comm.exchange(s.call, Collective::kAllGather, {}, RankPieces(2), s.outputs),
                    Contains("all_gather: got inputs for 2 ranks but call.ranks has 6"));
  CHECK_THROWS_WITH(comm.exchange(s.call, Collective::kAllGather, {}, s.inputs, RankPieces(5)),
                    Contains("all_gather: got outputs for 5 ranks but call.ranks has 6"));
  const std::vector<int64_t> some = {5, 0};
  s.call.ranks = some;
  CHECK_THROWS_WITH(comm.exchange(s.call, Collective::kAllGather, std::vector<Message>{{3, 3, 0, 0, ok}}, RankPieces(2),
                                  RankPieces(2)),
                    Contains("goes from rank 3 to rank 3, and call.ranks has neither"));
  RankPieces uneven(2);
  uneven[0].push_back(at::zeros({1}));
  CHECK_THROWS_WITH(comm.all_reduce_many(s.call, uneven, ReduceOp::kSum),
                    Contains("all_reduce: rank 5 passes 1 tensors and rank 0 passes 0"));
}

}  // namespace
}  // namespace dtensor
