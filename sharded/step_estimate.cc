#include "sharded/step_estimate.h"

#include <algorithm>
#include <cmath>

#include "sharded/chunk_sharding_spec.h"

namespace dtensor::sharded {
namespace {

constexpr double kCacheLine = 64;  // bytes that reading a row takes at least
constexpr double kIdBytes = 8;

}  // namespace

const char* to_string(ShardingKind kind) {
  switch (kind) {
    case ShardingKind::kReplicated:
      return "replicated";
    case ShardingKind::kTableWise:
      return "table-wise";
    case ShardingKind::kRowWise:
      return "row-wise";
    case ShardingKind::kColumnWise:
      return "column-wise";
  }
  return "";
}

double ParameterFacts::bytes() const {
  double elements = 1;
  for (const int64_t size : sizes) elements *= static_cast<double>(size);
  return elements * static_cast<double>(element_bytes);
}

int64_t StepEstimate::largest() const { return memory.empty() ? 0 : *std::max_element(memory.begin(), memory.end()); }

void StepSums::add(const ParameterFacts& p, const ShardingChoice& c, double sign) {
  if (c.kind == ShardingKind::kReplicated) {
    all_reduced_ += sign * p.bytes();
  } else if (p.is_table) {
    ids_ += sign * setting_.samples * p.ids * kIdBytes;
    tables_ += sign > 0 ? 1 : -1;
  } else {
    gathered_ += sign * p.bytes();
  }
  for (int64_t r = 0; r < setting_.ranks; ++r) {
    Rank& rank = ranks_[r];
    const double held = held_part(p, c, r);
    rank.memory += static_cast<int64_t>(sign * std::ceil(setting_.memory_factor * p.bytes() * held));
    if (p.is_table) add_traffic(rank, p, c, held, sign);
  }
}

StepEstimate StepSums::estimate() const {
  const double n = static_cast<double>(setting_.ranks);
  StepEstimate result;
  double forward = 0, backward = 0, read = 0;
  for (const Rank& r : ranks_) {
    result.memory.push_back(r.memory);
    forward = std::max(forward, r.forward);
    backward = std::max(backward, r.backward);
    read = std::max(read, r.read);
  }
  const auto pay = [&](Collective kind, double bytes, int times = 1) {
    if (setting_.ranks == 1 || bytes < 0.5) return;
    result.received += bytes * times;
    result.seconds +=
        times * setting_.cost.collective(kind, GroupExtent::of_links(setting_.ranks, setting_.crosses_nodes),
                                         std::llround(bytes));
  };
  if (tables_ > 0) {
    pay(Collective::kAllGather, ids_ * (n - 1));
    pay(Collective::kAllToAll, forward);
    pay(Collective::kAllToAll, backward);
  }
  pay(Collective::kAllReduce, 2 * all_reduced_ * (n - 1) / n);
  pay(Collective::kAllGather, gathered_ * (n - 1) / n, 2);
  pay(Collective::kReduceScatter, gathered_ * (n - 1) / n);
  result.seconds += setting_.cost.copy(std::llround(read));
  return result;
}

// The fraction of the parameter that a rank has.
double StepSums::held_part(const ParameterFacts& p, const ShardingChoice& c, int64_t rank) const {
  const auto fraction = [&](size_t dim) {
    const int64_t size = p.sizes[dim];
    return size == 0 ? 0.0
                     : static_cast<double>(get_chunked_dim_size(size, get_split_size(size, setting_.ranks), rank)) /
                           static_cast<double>(size);
  };
  switch (c.kind) {
    case ShardingKind::kReplicated:
      return 1;
    case ShardingKind::kTableWise:
      return rank == c.rank ? 1 : 0;
    case ShardingKind::kRowWise:
      return fraction(0);
    case ShardingKind::kColumnWise:
      return fraction(1);
  }
  return 1;
}

void StepSums::add_traffic(Rank& rank, const ParameterFacts& p, const ShardingChoice& c, double held,
                           double sign) const {
  const double n = static_cast<double>(setting_.ranks);
  const double row = static_cast<double>(p.sizes.back() * p.element_bytes);
  const double out = sign * setting_.samples * p.rows, looked_up = sign * setting_.samples * p.ids;
  switch (c.kind) {
    case ShardingKind::kReplicated:
      rank.read += looked_up * std::max(row, kCacheLine);
      break;
    case ShardingKind::kRowWise:
      rank.forward += (n - 1) * out * row;
      rank.backward += (n - 1) * out * row;
      rank.read += looked_up * n * held * std::max(row, kCacheLine);
      break;
    case ShardingKind::kTableWise:
    case ShardingKind::kColumnWise:
      rank.forward += out * row * (1 - held);
      rank.backward += (n - 1) * out * row * held;
      if (held > 0) rank.read += looked_up * n * std::max(row * held, kCacheLine);
      break;
  }
}

}  // namespace dtensor::sharded
