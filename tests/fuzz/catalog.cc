#include "tests/fuzz/catalog.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "dtensor/dispatch/op_info.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

using Names = std::set<std::string>;

// Parts of names of operators that need other kinds of tensors, draw random numbers, or leave memory uninitialized.
const std::vector<std::string>& foreign_parts() {
  static const auto* const parts = new std::vector<std::string>{"backward",
                                                                "cudnn",
                                                                "miopen",
                                                                "mkldnn",
                                                                "mps",
                                                                "quant",
                                                                "qint",
                                                                "sparse",
                                                                "fbgemm",
                                                                "xnnpack",
                                                                "nested",
                                                                "jagged",
                                                                "vulkan",
                                                                "rand",
                                                                "empty",
                                                                "sym_",
                                                                "bernoulli",
                                                                "multinomial",
                                                                "normal",
                                                                "poisson",
                                                                "rrelu",
                                                                "uniform",
                                                                "cauchy",
                                                                "exponential",
                                                                "geometric",
                                                                "dropout",
                                                                "binomial",
                                                                "gumbel",
                                                                "dirichlet",
                                                                "resize",
                                                                "rename",
                                                                "names",
                                                                "align_",
                                                                "indices_copy",
                                                                "values_copy",
                                                                "q_scale",
                                                                "q_zero",
                                                                "q_per",
                                                                "coalesce",
                                                                "int_repr",
                                                                "fake_",
                                                                "fused_",
                                                                "choose_q",
                                                                "test_",
                                                                "slow_conv",
                                                                "lstm",
                                                                "gru",
                                                                "rnn",
                                                                "ctc_loss",
                                                                "hspmm",
                                                                "sspaddmm",
                                                                "smm",
                                                                "segment_reduce",
                                                                "as_strided_",
                                                                "requires_grad",
                                                                "retain",
                                                                "_cpu",
                                                                "_cuda",
                                                                "_mtia",
                                                                "_xpu",
                                                                "feature_",
                                                                "alpha_",
                                                                "stft",
                                                                "histogram",
                                                                "ccol",
                                                                "crow",
                                                                "embedding_renorm",
                                                                "thnn",
                                                                "conv_depthwise",
                                                                "lu_unpack"};
  return *parts;
}

bool is_foreign(const std::string& base) {
  static const auto* const exact = new Names{"set",
                                             "set_",
                                             "data",
                                             "set_data",
                                             "shallow_copy_data_",
                                             "is_leaf",
                                             "output_nr",
                                             "record_stream",
                                             "pin_memory",
                                             "is_pinned",
                                             "cpu",
                                             "cuda",
                                             "stride",
                                             "size",
                                             "numel",
                                             "dim",
                                             "storage_offset",
                                             "is_contiguous",
                                             "is_set_to",
                                             "values",
                                             "indices",
                                             "col_indices",
                                             "row_indices",
                                             "dense_dim",
                                             "to_dense",
                                             "to_padded_tensor",
                                             "from_file",
                                             "is_same_size",
                                             "get_device",
                                             "element_size",
                                             "device",
                                             "layout",
                                             "dequantize",
                                             "copy_imag",
                                             "is_distributed",
                                             "is_inference",
                                             "glu_jvp",
                                             "to_dlpack",
                                             "svd_lowrank",
                                             "pca_lowrank",
                                             "linalg_lstsq",
                                             "geqrf",
                                             "ormqr",
                                             "orgqr",
                                             "linalg_householder_product",
                                             "detach_",
                                             "unsafe_chunk",
                                             "bincount",
                                             "lift",
                                             "lift_fresh",
                                             "unflatten_dense_tensors",
                                             "flatten_dense_tensors",
                                             "is_conj",
                                             "is_neg"};
  // Internal operators trust their arguments; public ones call them.
  static const auto* const internal =
      new Names{"_conj",    "_to_copy",     "_unsafe_view", "_unsafe_index", "_index_put_impl_",
                "_softmax", "_log_softmax", "_is_all_true", "_is_any_true",  "_stack"};
  if (exact->count(base) > 0) return true;
  if (base[0] == '_' && base.rfind("__", 0) != 0 && internal->count(base) == 0 && base.rfind("_foreach_", 0) != 0)
    return true;
  return std::any_of(foreign_parts().begin(), foreign_parts().end(),
                     [&](const std::string& part) { return absl::StrContains(base, part); });
}

bool has_usual_arguments(const c10::FunctionSchema& schema) {
  bool tensor = false;
  for (const auto& a : schema.arguments()) {
    const std::string type = a.type()->annotation_str();
    if (a.name() == "names" || absl::StrContains(type, "Dimname") || absl::StrContains(type, "Storage") ||
        absl::StrContains(type, "Stream"))
      return false;
    if (a.name() == "generator") return false;
    tensor = tensor || absl::StrContains(type, "Tensor");
  }
  return tensor && !schema.is_vararg();
}

double weight_of(const std::string& base) {
  static const auto* const views = new Names{
      "select",  "slice",      "narrow",   "view",      "reshape", "transpose", "permute", "t",       "unsqueeze",
      "squeeze", "expand",     "diagonal", "unbind",    "split",   "chunk",     "unfold",  "flatten", "swapaxes",
      "movedim", "as_strided", "view_as",  "expand_as", "real",    "imag",      "index",   "alias"};
  static const auto* const frequent =
      new Names{"add",   "mul",       "sum",       "copy",        "fill",  "zero", "mm",  "matmul",
                "clone", "index_put", "embedding", "masked_fill", "where", "cat",  "sub", "div"};
  if (base.rfind("_foreach_", 0) == 0) return 0.1;
  return views->count(base) > 0 ? 5 : frequent->count(base) > 0 ? 3 : 1;
}

Operator::Support support_of(const OpInfo& info) {
  if (info.handler != nullptr || info.rule()) return Operator::Support::kRule;
  return info.composite_implicit ? Operator::Support::kComposite : Operator::Support::kNone;
}

bool is_view(const c10::OperatorHandle& op) {
  static const auto* const composed =
      new Names{"reshape", "reshape_as", "flatten",    "narrow",   "chunk",     "tensor_split", "swapaxes", "movedim",
                "view_as", "expand_as",  "contiguous", "moveaxis", "unflatten", "ravel",        "squeeze",  "mT"};
  return op_info(op).is_view || composed->count(op.operator_name().name.substr(6)) > 0;
}

std::vector<Operator> make_catalog() {
  std::vector<Operator> all;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    std::string base = name.name.substr(6);
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || is_foreign(base) || !has_usual_arguments(handle->schema())) continue;
    if (handle->hasTag(at::Tag::nondeterministic_seeded) || absl::StrContains(name.overload_name, "dimname")) continue;
    if (base.size() > 1 && base.back() == '_' && base[0] != '_') base.pop_back();
    all.push_back({*handle, c10::toString(name), base, support_of(op_info(*handle)), is_view(*handle), 1});
  }
  std::sort(all.begin(), all.end(), [](const Operator& a, const Operator& b) { return a.name < b.name; });
  std::map<std::string, double> overloads;
  for (const Operator& op : all) overloads[op.base] += 1;
  for (Operator& op : all) {
    op.weight = weight_of(op.base) / overloads[op.base];
    if (op.support == Operator::Support::kNone) op.weight *= 0.2;
  }
  return all;
}

}  // namespace

const std::vector<Operator>& catalog() {
  static const auto* const all = new std::vector<Operator>(make_catalog());
  return *all;
}

bool is_composite(const std::string& name) {
  const auto& all = catalog();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const Operator& op, const std::string& n) { return op.name < n; });
  return found != all.end() && found->name == name && found->support == Operator::Support::kComposite;
}

bool takes_integers(const std::string& base) {
  static const auto* const names = new Names{"gcd", "lcm", "one_hot", "unravel_index"};
  return base.rfind("bitwise_", 0) == 0 || base.rfind("__", 0) == 0 || names->count(base) > 0;
}

bool needs_distinct_values(const std::string& base) {
  static const auto* const names =
      new Names{"sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique_dim", "_unique2"};
  return names->count(base) > 0;
}

}  // namespace dtensor::fuzz
