#include "plan/operator_times.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace dtensor::internal {

std::string operator_row(const std::string& op, double flops, c10::ScalarType dtype, int64_t bytes) {
  if (flops > 0) return c10::str(op, " ", c10::getDtypeNames(dtype).first);
  return bytes > 0 ? op : "view";
}

std::optional<double> measured_seconds(const OperatorTimes& times, const std::string& op, double flops,
                                       c10::ScalarType dtype, int64_t bytes, double least) {
  if (times.empty()) return std::nullopt;
  auto found = times.find(operator_row(op, flops, dtype, bytes));
  if (found == times.end() && flops == 0 && bytes > 0) found = times.find("other");
  if (found == times.end()) return std::nullopt;
  const std::vector<OperatorTime>& row = found->second;
  const double amount = flops > 0 ? flops : static_cast<double>(bytes);
  const auto above =
      std::lower_bound(row.begin(), row.end(), amount,
                       [](const OperatorTime& time, double least_amount) { return time.amount < least_amount; });
  const auto scaled = [&](const OperatorTime& time) {
    return time.amount > 0 ? least + std::max(time.seconds - least, 0.) * (amount / time.amount) : time.seconds;
  };
  if (above == row.end()) return std::max(scaled(row.back()), row.back().seconds);
  if (above == row.begin()) return std::min(scaled(*above), above->seconds);
  const OperatorTime& below = *(above - 1);
  return below.seconds + (above->seconds - below.seconds) * ((amount - below.amount) / (above->amount - below.amount));
}

void check_operator_times(const OperatorTimes& times, const std::string& where) {
  for (const auto& [name, row] : times) {
    TORCH_CHECK_VALUE(!row.empty(), where, " `operators[", name, "]` has no times");
    double last = -1;
    for (const OperatorTime& time : row) {
      TORCH_CHECK_VALUE(time.amount >= 0 && time.amount > last && std::isfinite(time.amount), where, " `operators[",
                        name, "]` has the amount ", time.amount, "; give amounts of at least 0 that ascend");
      TORCH_CHECK_VALUE(time.seconds > 0 && std::isfinite(time.seconds), where, " `operators[", name, "]` has ",
                        time.seconds, " seconds; give a number greater than 0");
      last = time.amount;
    }
  }
}

}  // namespace dtensor::internal
