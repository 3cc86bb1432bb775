// What the ranks of an exchange send and receive, and from which memory. All ranks are in this process.
#include "processes/c10d/byte_exchange.h"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "processes/c10d/first_messages.h"
#include "tests/processes/ranks_of_exchange.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/property.h"
#include "tests/testing/test_ranks.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::draw;

// Sends parts with the first messages if they all fit (true), else by all_to_all() (false).
bool send_by_first_messages(const RanksOfExchange& ranks, std::vector<ByteExchange>& exchanges) {
  const auto n = static_cast<int64_t>(exchanges.size());
  std::vector<FirstMessages> messages;
  for (int64_t r = 0; r < n; ++r) {
    CallMark mark;
    mark.members = ranks.group.members[0];
    mark.position = r;
    messages.emplace_back(mark, exchanges[r]);
  }
  for (int64_t to = 0; to < n; ++to) {
    for (int64_t from = 0; from < n; ++from) messages[to].receive[from].copy_(messages[from].send[to]);
  }
  const bool all = messages[0].hold_all();
  for (int64_t r = 0; r < n; ++r) {
    REQUIRE(messages[r].hold_all() == all);  // or some ranks would wait for a second exchange
    if (all) messages[r].copy_to(exchanges[r]);
  }
  if (!all) all_to_all(exchanges);
  return all;
}

TEST_CASE("byte exchange: parts that lie in order need no buffer", "[processes][byte_exchange]") {
  const int64_t n = GENERATE(2, 3, 5);
  CAPTURE(n);
  const RanksOfExchange ranks = all_to_all_of_parts(n);
  const RankPieces expected = ranks.expected();
  std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/true);
  for (int64_t r = 0; r < n; ++r) {
    CAPTURE(r);
    CHECK(is_memory_of(exchanges[r].send, ranks.inputs[r][0]));
    CHECK(is_memory_of(exchanges[r].receive, ranks.outputs[r][0]));
    const bool between = r > 0 && r + 1 < n;
    CHECK(exchanges[r].send_bytes[r] == (between ? 4 * (r + 1) : 0));
    CHECK(exchanges[r].receive_bytes[r] == exchanges[r].send_bytes[r]);
  }
  all_to_all(exchanges);
  check_results(ranks, expected, exchanges);
}

TEST_CASE("byte exchange: inputs that may change are copied at once", "[processes][byte_exchange]") {
  const int64_t n = GENERATE(2, 3, 5);
  CAPTURE(n);
  const RanksOfExchange ranks = all_to_all_of_parts(n);
  const RankPieces expected = ranks.expected();
  std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/false);
  for (int64_t r = 0; r < n; ++r) {
    CHECK(!is_memory_of(exchanges[r].send, ranks.inputs[r][0]));
    CHECK(is_memory_of(exchanges[r].receive, ranks.outputs[r][0]));
    ranks.inputs[r][0].fill_(-1);
  }
  all_to_all(exchanges);
  check_results(ranks, expected, exchanges);
}

TEST_CASE("byte exchange: conjugate and negative views are copied to be sent", "[processes][byte_exchange]") {
  const bool is_negative = GENERATE(false, true);
  RanksOfExchange ranks(2);
  for (int64_t r = 0; r < 2; ++r) {
    const at::Tensor t = at::complex(values({6}, at::kFloat, r), values({6}, at::kFloat, r + 1)).conj();
    ranks.inputs[r].push_back(is_negative ? at::_neg_view(values({6}, at::kFloat, r)) : t);
    REQUIRE((is_negative ? ranks.inputs[r][0].is_neg() : ranks.inputs[r][0].is_conj()));
    ranks.outputs[r].push_back(at::zeros({6}, ranks.inputs[r][0].options()));
    for (int64_t p = 0; p < 2; ++p) ranks.messages.push_back({r, p, 0, 0, {{3 * p}, {3 * r}, {3}}});
  }
  const RankPieces expected = ranks.expected();
  std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/true);
  all_to_all(exchanges);
  check_results(ranks, expected, exchanges);
}

TEST_CASE("byte exchange: rows and columns of a matrix", "[processes][byte_exchange]") {
  constexpr int64_t kRanks = 3;
  RanksOfExchange ranks(kRanks);  // every rank has a row of blocks and gets a column of them
  for (int64_t r = 0; r < kRanks; ++r) {
    ranks.inputs[r].push_back(values({2, 6}, at::kFloat, r));
    ranks.outputs[r].push_back(at::zeros({6, 2}, at::kFloat));
    for (int64_t p = 0; p < kRanks; ++p) ranks.messages.push_back({r, p, 0, 0, {{0, 2 * p}, {2 * r, 0}, {2, 2}}});
  }
  const RankPieces expected = ranks.expected();
  std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/true);
  for (int64_t r = 0; r < kRanks; ++r) {
    CHECK(!is_memory_of(exchanges[r].send, ranks.inputs[r][0]));
    CHECK(is_memory_of(exchanges[r].receive, ranks.outputs[r][0]));
  }
  all_to_all(exchanges);
  check_results(ranks, expected, exchanges);
}

TEST_CASE("byte exchange: a rank's large part for itself needs no second exchange", "[processes][byte_exchange]") {
  constexpr int64_t kRanks = 3, kOwn = 100'000, kOther = 10;
  RanksOfExchange ranks(kRanks);
  for (int64_t r = 0; r < kRanks; ++r) {
    ranks.inputs[r].push_back(values({kOwn + 2 * kOther}, at::kByte, r));
    ranks.outputs[r].push_back(at::zeros({kOwn + 2 * kOther}, at::kByte));
    for (int64_t p = 0; p < kRanks; ++p) {
      const auto begin = [](int64_t own, int64_t i) { return i * kOther + (i > own ? kOwn - kOther : 0); };
      ranks.messages.push_back({r, p, 0, 0, {{begin(r, p)}, {begin(p, r)}, {p == r ? kOwn : kOther}}});
    }
  }
  const RankPieces expected = ranks.expected();
  std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/true);
  CHECK(exchanges[1].send_bytes[1] == kOwn);
  CHECK(send_by_first_messages(ranks, exchanges));
  check_results(ranks, expected, exchanges);
}

// Copies what _allgather_base would send between these ranks.
void all_gather(std::vector<ByteExchange>& exchanges) {
  for (size_t to = 0; to < exchanges.size(); ++to) {
    for (size_t from = 0; from < exchanges.size(); ++from)
      part(exchanges[to].receive, exchanges[to].receive_bytes, static_cast<int64_t>(from)).copy_(exchanges[from].send);
  }
}

TEST_CASE("byte exchange: between more than two ranks an all-gather of equal parts sends one copy",
          "[processes][byte_exchange]") {
  const bool of_columns = GENERATE(false, true), inputs_stay = GENERATE(false, true);
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{4}, {2, 2}, {2, 2, 2}, {2, 2, 2, 2, 2}, {2, 2, 1}, {0, 0, 0}}) {
    CAPTURE(sizes, of_columns, inputs_stay);
    const auto n = static_cast<int64_t>(sizes.size());
    const bool are_equal = n > 2 && sizes[0] > 0 && sizes.back() == sizes[0];
    const RanksOfExchange ranks = gathering_ranks(sizes, of_columns);
    const RankPieces expected = ranks.expected();
    std::vector<ByteExchange> exchanges = ranks.exchanges(inputs_stay, /*may_all_gather=*/true);
    for (int64_t r = 0; r < n; ++r) {
      REQUIRE(exchanges[r].is_all_gather == are_equal);
      if (!are_equal) continue;
      CHECK(exchanges[r].send.numel() == sizes[r] * 3 * 4);
      CHECK(is_memory_of(exchanges[r].send, ranks.inputs[r][0]) == inputs_stay);
      CHECK(is_memory_of(exchanges[r].receive, ranks.outputs[r][0]) == !of_columns);
      if (!inputs_stay) ranks.inputs[r][0].zero_();
    }
    are_equal ? all_gather(exchanges) : all_to_all(exchanges);
    check_results(ranks, expected, exchanges);
  }
}

TEST_CASE("byte exchange: an all-gather of two blocks of each of two tensors", "[processes][byte_exchange]") {
  constexpr int64_t kRanks = 3;
  RanksOfExchange ranks(kRanks);
  for (int64_t r = 0; r < kRanks; ++r) {
    ranks.inputs[r] = {values({6}, at::kShort, r), values({4}, at::kFloat, r)};
    ranks.outputs[r] = {at::zeros({kRanks * 6}, at::kShort), at::zeros({kRanks * 4})};
  }
  for (int64_t r = 0; r < kRanks; ++r) {
    for (int64_t p = 0; p < kRanks; ++p) {
      for (int64_t half = 0; half < 2; ++half)  // the halves of all ranks lie together
        ranks.messages.push_back({r, p, 0, 0, {{3 * half}, {3 * (half * kRanks + r)}, {3}}});
      for (int64_t half = 0; half < 2; ++half)
        ranks.messages.push_back({r, p, 1, 1, {{2 * half}, {2 * (half * kRanks + r)}, {2}}});
    }
  }
  const RankPieces expected = ranks.expected();
  std::vector<ByteExchange> exchanges = ranks.exchanges(/*inputs_stay=*/true, /*may_all_gather=*/true);
  for (const ByteExchange& exchange : exchanges) REQUIRE(exchange.is_all_gather);
  all_gather(exchanges);
  check_results(ranks, expected, exchanges);
}

// A tensor's blocks one after the other, in any order, with gaps or without.
struct Cuts {
  std::vector<int64_t> begins;
  int64_t numel = 0;
};

Cuts draw_cuts(const std::vector<int64_t>& sizes) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  if (draw(0, 2) == 0) {
    for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[draw(0, static_cast<int64_t>(i))]);
  }
  const bool gaps = draw(0, 2) == 0;
  Cuts cuts{std::vector<int64_t>(sizes.size()), draw(0, 1)};
  for (size_t i : order) {
    cuts.begins[i] = cuts.numel;
    cuts.numel += sizes[i] + (gaps ? draw(0, 1) : 0);
  }
  return cuts;
}

// Of ranks with up to two tensors each, of two dtypes.
RanksOfExchange draw_ranks() {
  const int64_t n = draw(1, 5), tensors = draw(1, 2), most = draw(0, 3) == 0 ? 5000 : 5;
  RanksOfExchange ranks(n);
  // sizes[k][s][r]: elements of tensor k that rank s sends rank r
  std::vector<std::vector<std::vector<int64_t>>> sizes(tensors,
                                                       std::vector<std::vector<int64_t>>(n, std::vector<int64_t>(n)));
  for (auto& of_tensor : sizes) {
    for (auto& of_sender : of_tensor) {
      for (int64_t& size : of_sender) size = draw(0, 4) == 0 ? 0 : draw(0, most);
    }
  }
  for (int64_t k = 0; k < tensors; ++k) {
    const at::ScalarType dtype = k == 0 || draw(0, 1) == 0 ? at::kInt : at::kByte;
    std::vector<Cuts> from, to;
    for (int64_t r = 0; r < n; ++r) {
      std::vector<int64_t> received(n);
      for (int64_t s = 0; s < n; ++s) received[s] = sizes[k][s][r];
      from.push_back(draw_cuts(sizes[k][r]));
      to.push_back(draw_cuts(received));
      ranks.inputs[r].push_back(values({from[r].numel}, dtype, r));
      ranks.outputs[r].push_back(at::zeros({to[r].numel}, dtype));
    }
    for (int64_t s = 0; s < n; ++s) {
      for (int64_t r = 0; r < n; ++r)
        ranks.messages.push_back({s, r, k, k, {{from[s].begins[r]}, {to[r].begins[s]}, {sizes[k][s][r]}}});
    }
  }
  return ranks;
}

TEST_CASE("byte exchange: random parts arrive", "[processes][byte_exchange]") {
  int sent_in_place = 0, received_in_place = 0, with_own = 0, in_first_messages = 0;
  REQUIRE(testing::holds("parts", 600, [&] {
    const RanksOfExchange ranks = draw_ranks();
    const RankPieces expected = ranks.expected();
    const bool inputs_stay = draw(0, 1) == 0;
    std::vector<ByteExchange> exchanges = ranks.exchanges(inputs_stay);
    for (int64_t r = 0; r < ranks.group.size; ++r) {
      if (exchanges[r].send.numel() > 0) sent_in_place += is_memory_of(exchanges[r].send, ranks.inputs[r][0]) ? 1 : 0;
      if (exchanges[r].receive.numel() > 0)
        received_in_place += is_memory_of(exchanges[r].receive, ranks.outputs[r][0]) ? 1 : 0;
      with_own += exchanges[r].send_bytes[r] > 0 ? 1 : 0;
      if (!inputs_stay) {
        for (const at::Tensor& t : ranks.inputs[r]) t.zero_();
      }
    }
    if (draw(0, 1) == 0) {
      in_first_messages += send_by_first_messages(ranks, exchanges) ? 1 : 0;
    } else {
      all_to_all(exchanges);
    }
    check_results(ranks, expected, exchanges);
  }));
  CHECK(sent_in_place > 20);
  CHECK(received_in_place > 20);
  CHECK(with_own > 20);
  CHECK(in_first_messages > 20);
}

}  // namespace
}  // namespace dtensor
