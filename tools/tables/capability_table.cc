// The table of backends in docs/worlds.md: what each does itself, and what is made of exchanges. From
// comm/backend_capabilities.h, by which the communicators choose.
//
//   ./bazelw run //tools:capability_table              # prints it
//   ./bazelw run //tools:capability_table -- --write   # puts it into the page

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/backend_capabilities.h"
#include "tools/flags.h"
#include "tools/tables/page_table.h"

namespace {

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::tools;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

std::string dtype_name(at::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

// "| native | - | native | native | native |"
std::string cells(CommBackend backend, Collective c, at::ScalarType dtype) {
  std::string text;
  for (ReduceOp op : kOps) {
    absl::StrAppend(&text, " | ", std::string(describe(reduction_by(backend, c, dtype, op).carrier)));
  }
  return text + " |";
}

// Whether the backend reduces nothing itself.
bool all_in_order(CommBackend backend, Collective c) {
  for (at::ScalarType dtype : reducible_dtypes()) {
    for (ReduceOp op : kOps) {
      const Carrier carrier = reduction_by(backend, c, dtype, op).carrier;
      if (carrier != Carrier::kInOrder && carrier != Carrier::kUndefined) return false;
    }
  }
  return true;
}

std::string table() {
  std::string text =
      "| backend | exchanges, even and uneven, of every dtype "
      "| all_gather of equal parts | all_reduce | reduce_scatter |\n"
      "| --- | --- | --- | --- | --- |\n";
  std::optional<std::pair<CommBackend, Collective>> by_dtype;  // backends that reduce themselves: all in the same way
  for (CommBackend backend : kCommBackends) {
    absl::StrAppend(&text, "| ", std::string(describe(backend)), " | ", std::string(describe(transport_of(backend))),
                    has_all_gather(backend) ? " | its own" : " | an exchange");
    for (Collective c : {Collective::kAllReduce, Collective::kReduceScatter}) {
      const bool in_order = all_in_order(backend, c);
      absl::StrAppend(&text, " | ", in_order ? "in order" : "by dtype");
      if (in_order) continue;
      if (!by_dtype) by_dtype = {backend, c};
      for (at::ScalarType dtype : reducible_dtypes()) {
        TORCH_CHECK(cells(backend, c, dtype) == cells(by_dtype->first, by_dtype->second, dtype),
                    "the page has one table for all backends that reduce themselves, but they do not agree on ", dtype);
      }
    }
    text += " |\n";
  }
  text += "\n| by dtype | sum | avg | product | min | max |\n| --- | --- | --- | --- | --- | --- |\n";
  std::vector<std::pair<std::vector<std::string>, std::string>> rows;  // dtypes that are treated alike
  for (at::ScalarType dtype : reducible_dtypes()) {
    const std::string row = cells(by_dtype->first, by_dtype->second, dtype);
    if (rows.empty() || rows.back().second != row) rows.push_back({{}, row});
    rows.back().first.push_back(dtype_name(dtype));
  }
  for (const auto& [dtypes, row] : rows) absl::StrAppend(&text, "| ", absl::StrJoin(dtypes, ", "), row, "\n");
  return text;
}

int run() { return make_page_table({"docs/worlds.md", "table of backends", "//tools:capability_table"}, table()); }

}  // namespace

int main(int argc, char** argv) {
  return run_program("capability_table", "Prints what each backend of collectives does itself.", argc, argv, run);
}
