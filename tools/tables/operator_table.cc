// The table of operators in docs/tables/operators.md: which file has the rule or the handler of each. From the
// registry.
//
//   ./bazelw run //tools:operator_table              # prints it
//   ./bazelw run //tools:operator_table -- --write   # puts it into the page

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "propagation/rule_registry.h"
#include "tools/flags.h"
#include "tools/tables/page_table.h"

namespace {

using namespace dtensor;
using namespace dtensor::tools;

// Where an operator's rule and handler stand; overloads that have their own, apart.
struct Row {
  std::set<std::string> rules, handlers;
  std::vector<std::string> overloads;
};

std::map<std::string, Row> rows() {
  std::map<std::string, Row> all;
  for (const RuleRegistry::Entry& entry : RuleRegistry::instance().entries()) {
    const size_t dot = entry.op.find('.');
    Row& row = all[entry.op.substr(0, dot)];
    (entry.kind == RuleRegistry::Entry::Kind::kRule ? row.rules : row.handlers).insert(entry.file);
    if (dot == std::string::npos) continue;
    const std::string overload = entry.op.substr(dot + 1);
    if (row.overloads.empty() || row.overloads.back() != overload) row.overloads.push_back(overload);
  }
  return all;
}

std::string links(const std::set<std::string>& files) {
  const auto link = [](std::string* text, const std::string& file) {
    absl::StrAppend(text, "[", file, "](../../", file, ")");
  };
  return absl::StrJoin(files, ", ", link);
}

std::string table() {
  std::string text = "| operator | overloads of their own | rule | handler |\n| --- | --- | --- | --- |\n";
  for (const auto& [op, row] : rows()) {
    absl::StrAppend(&text, "| `", op, "` | ", absl::StrJoin(row.overloads, ", "), " | ", links(row.rules), " | ",
                    links(row.handlers), " |\n");
  }
  return text;
}

// ------------------------------------------------------------ those that have neither

// Why an operator has none, by what its name has in it; the first that fits.
struct Reason {
  const char* text;
  std::vector<const char*> parts;
};

const std::vector<Reason>& reasons() {
  static const auto* const all = new std::vector<Reason>{
      {"asks about or tests LibTorch itself",
       {"_test_", "_foobar", "_assert", "_print", "_sym_", "sym_constrain", "_functional_", "_dummy", "_version",
        "_cuda_getCurrent", "_linalg_lapack", "_fill_mem_eff"}},
      {"of sparse tensors, whose parts are no boxes of a dense one",
       {"sparse", "coalesce", "_nnz", "_indices", "_values", "crow", "ccol", "col_indices", "row_indices", "csr",
        "spmm", "spsolve", "dimI", "dimV", "spdiags", "_dim", "to_dense", "values", "indices"}},
      {"of quantised tensors and packed weights",
       {"quant", "qint", "q_scale", "q_zero", "q_per", "int4pack", "int8pack", "fbgemm", "qparams", "int_repr",
        "moving_avg_obs", "cslt", "mixed_dtypes", "weight_int4", "dyn_quant", "wrapped_linear"}},
      {"of one backend, which LibTorch calls for that backend's own tensors",
       {"mkldnn", "mps", "cudnn", "miopen", "nnpack", "xnn", "vulkan", "metal", "thnn_fused", "slow_conv",
        "conv_depthwise", "overrideable", "triton", "cuda"}},
      {"a fused attention or transformer of GPUs; scaled_dot_product_attention has a rule, and torch::nn's modules are composed",
       {"flash_attention", "efficient_attention", "_attention", "transformer", "native_multi_head",
        "bias_rescale_qkv"}},
      {"of nested tensors", {"nested", "jagged", "padded"}},
      {"changes or shares a storage, which a distributed tensor has none of",
       {"set_", "::set", "resize", "_copy_from", "storage", "pin_memory", "is_pinned", "lazy_clone", "swap", "_data",
        "_make_dual", "_fw_primal", "_conj_physical_", "reinterpret", "record_stream", "_to_copy", "lift_fresh",
        "unsafe_view", "alias"}},
      {"draws numbers from a key and an element's place in the whole tensor: draw the whole, and distribute it",
       {"_philox"}},
      {"of dims with names", {"rename", "refine", "align", "names"}},
  };
  return *all;
}

constexpr char kNotWritten[] = "not written yet";

std::string reason_of(const std::string& name) {
  for (const Reason& reason : reasons()) {
    for (const char* part : reason.parts) {
      if (name.find(part) != std::string::npos) return reason.text;
    }
  }
  return kNotWritten;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (!argument.is_out() && argument.type()->str().find("Tensor") != std::string::npos) return true;
  }
  return false;
}

// ATen's operators that take tensors, that have neither rule nor handler in any overload, and that ATen does not
// compose of others, by reason. What only writes another one's result to an out= tensor is left out.
std::string table_of_others() {
  std::map<std::string, bool> known;  // by name, in-place forms with the others
  const auto& registry = RuleRegistry::instance();
  for (const auto& op_name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op_name.name.rfind("aten::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(op_name);
    if (!op || !takes_tensors(op->schema())) continue;
    std::string name = op_name.name;
    if (name.back() == '_') name.pop_back();
    const bool composed = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    known[name] |= composed || registry.find(*op) != nullptr || registry.find_handler(*op).handler != nullptr;
  }
  std::map<std::string, std::set<std::string>> by_reason;
  for (const auto& [name, is_known] : known) {
    if (!is_known) by_reason[reason_of(name)].insert("`" + name.substr(6) + "`");
  }
  std::string text = "| why | operators |\n| --- | --- |\n";
  for (const auto& [reason, names] : by_reason)
    absl::StrAppend(&text, "| ", reason, " | ", absl::StrJoin(names, ", "), " |\n");
  return text;
}

int run() {
  const int first =
      make_page_table({"docs/tables/operators.md", "table of operators", "//tools:operator_table"}, table());
  const int second = make_page_table({"docs/tables/operators.md", "table of other operators", "//tools:operator_table"},
                                     table_of_others());
  return first != 0 ? first : second;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("operator_table", "Prints which file has the rule or the handler of each operator.", argc, argv,
                     run);
}
