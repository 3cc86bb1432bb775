// Measured times of operators, by name and size: of an operator's parts on one rank.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {

struct OperatorTime {
  double amount = 0;   // bytes that a rank reads and writes; of a matrix product its floating-point operations
  double seconds = 0;  // from its start to its end

  friend bool operator==(const OperatorTime&, const OperatorTime&) = default;
};

// By operator, as "aten::mul.Tensor", and of a matrix product by operator and dtype, as "aten::mm float32"; "view" is
// for all views, and "other" for operators without a row that are no matrix products. Amounts ascend.
using OperatorTimes = std::map<std::string, std::vector<OperatorTime>>;

namespace internal {

// The name of a row, for an operator that does `flops` in matrix products, and otherwise reads and writes `bytes`.
std::string operator_row(const std::string& op, double flops, c10::ScalarType dtype, int64_t bytes);

// Linear between two amounts. Above the largest and below the smallest the time beyond `least`, that of a start, is in
// proportion to the amount. nullopt: there is no row for it.
std::optional<double> measured_seconds(const OperatorTimes& times, const std::string& op, double flops,
                                       c10::ScalarType dtype, int64_t bytes, double least);

// Error (ValueError), beginning with `where`: a row without times; an amount that is negative, infinite or not above
// the one before; seconds that are not positive.
void check_operator_times(const OperatorTimes& times, const std::string& where);

}  // namespace internal

}  // namespace dtensor
