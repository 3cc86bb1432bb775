// What the ranks of an exchange send and receive, all of them in this process.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "comm/block_copy.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"
#include "processes/c10d/byte_exchange.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

namespace dtensor {

// The tensors of all ranks of an exchange, and what it writes.
struct RanksOfExchange {
  c10::Device device;
  RankGroups group;
  std::vector<internal::Message> messages;
  internal::RankPieces inputs, outputs;  // per rank

  explicit RanksOfExchange(int64_t size, c10::Device on = c10::kCPU)
      : device(on), group(DeviceMesh(World::abstract(size), {size}).get_group(0)), inputs(size), outputs(size) {}

  // The outputs after the exchange; 0 where no message writes.
  internal::RankPieces expected() const {
    internal::RankPieces results(group.size);
    for (int64_t r = 0; r < group.size; ++r) {
      for (const at::Tensor& t : outputs[r]) results[r].push_back(at::zeros(t.sizes(), t.options()));
    }
    for (const internal::Message& m : messages)
      internal::copy_block(inputs[m.sender][m.input], results[m.receiver][m.output], m.block);
    return results;
  }

  // Those that rank `r` sends or receives.
  std::vector<internal::Message> messages_of(int64_t r) const {
    std::vector<internal::Message> some;
    for (const internal::Message& m : messages) {
      if (m.sender == r || m.receiver == r) some.push_back(m);
    }
    return some;
  }

  std::vector<internal::ByteExchange> exchanges(bool inputs_stay, bool may_all_gather = false) const {
    std::vector<internal::ByteExchange> exchanges;
    for (int64_t r = 0; r < group.size; ++r) {
      exchanges.emplace_back(group, r, device, messages_of(r), internal::RankPieces{inputs[r]},
                             internal::RankPieces{outputs[r]}, inputs_stay, may_all_gather);
    }
    return exchanges;
  }
};

// The bytes that go to or come from the rank at `position`.
inline at::Tensor part(const at::Tensor& memory, const std::vector<int64_t>& bytes, int64_t position) {
  return memory.narrow(0, std::accumulate(bytes.begin(), bytes.begin() + position, int64_t{0}), bytes[position]);
}

// Copies what alltoall_base would send between these ranks.
inline void all_to_all(std::vector<internal::ByteExchange>& exchanges) {
  const auto n = static_cast<int64_t>(exchanges.size());
  for (int64_t from = 0; from < n; ++from) {
    for (int64_t to = 0; to < n; ++to) {
      const at::Tensor sent = part(exchanges[from].send, exchanges[from].send_bytes, to);
      part(exchanges[to].receive, exchanges[to].receive_bytes, from).copy_(sent);
    }
  }
}

inline bool is_memory_of(const at::Tensor& bytes, const at::Tensor& tensor) {
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  const auto* address = static_cast<const char*>(bytes.const_data_ptr());
  return address >= begin && address < begin + tensor.nbytes();
}

inline void check_results(const RanksOfExchange& ranks, const internal::RankPieces& expected,
                          const std::vector<internal::ByteExchange>& exchanges) {
  for (int64_t r = 0; r < ranks.group.size; ++r) {
    exchanges[r].write_outputs();
    for (size_t k = 0; k < expected[r].size(); ++k) {
      INFO("output " << k << " of rank " << r);
      REQUIRE(at::equal(ranks.outputs[r][k], expected[r][k]));
    }
  }
}

// Every rank sends rank p the p-th of n parts, of p + 1 elements, and puts what it gets in the order of the ranks.
inline RanksOfExchange all_to_all_of_parts(int64_t n, c10::Device device = c10::kCPU) {
  RanksOfExchange ranks(n, device);
  for (int64_t r = 0; r < n; ++r) {
    ranks.inputs[r].push_back(values({n * (n + 1) / 2}, at::kInt, r).to(device));
    ranks.outputs[r].push_back(at::zeros({n * (r + 1)}, at::TensorOptions().dtype(at::kInt).device(device)));
    for (int64_t p = 0; p < n; ++p) ranks.messages.push_back({r, p, 0, 0, {{p * (p + 1) / 2}, {r * (p + 1)}, {p + 1}}});
  }
  return ranks;
}

// Every rank has rows of a matrix, or columns, and all get the whole. `sizes`: of the parts.
inline RanksOfExchange gathering_ranks(const std::vector<int64_t>& sizes, bool of_columns = false) {
  const auto n = static_cast<int64_t>(sizes.size());
  const int64_t whole = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  RanksOfExchange ranks(n);
  int64_t begin = 0;
  for (int64_t r = 0; r < n; begin += sizes[r++]) {
    const Shape part = of_columns ? Shape{3, sizes[r]} : Shape{sizes[r], 3};
    const Shape offsets = of_columns ? Shape{0, begin} : Shape{begin, 0};
    ranks.inputs[r].push_back(values({part.data(), part.size()}, at::kFloat, r));
    ranks.outputs[r].push_back(of_columns ? at::zeros({3, whole}) : at::zeros({whole, 3}));
    for (int64_t p = 0; p < n; ++p) ranks.messages.push_back({r, p, 0, 0, {{0, 0}, offsets, part}});
  }
  return ranks;
}

}  // namespace dtensor
