#include "tests/fuzz/undefined.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "plan/tensor_meta.h"
#include "propagation/functional_form.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/infinities.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

using Names = std::set<std::string>;

std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  return {};
}

double largest(const at::Tensor& t) {
  double result = 0;
  for (double v : numbers(t)) result = std::isnan(v) ? INFINITY : std::max(result, std::abs(v));
  return result;
}

// Whether two elements share memory.
bool overlaps(const at::Tensor& t) {
  if (!t.defined() || t.numel() < 2 || t.is_non_overlapping_and_dense()) return false;
  std::vector<int64_t> offsets = {0};
  for (int64_t d = 0; d < t.dim(); ++d) {
    std::vector<int64_t> longer;
    for (int64_t before : offsets) {
      for (int64_t k = 0; k < t.size(d); ++k) longer.push_back(before + k * t.stride(d));
    }
    offsets = std::move(longer);
  }
  return std::set<int64_t>(offsets.begin(), offsets.end()).size() < offsets.size();
}

class Call {
 public:
  Call(const c10::FunctionSchema& schema, const torch::jit::Stack& stack)
      : schema_(schema), stack_(stack), name_(schema.name().substr(schema.name().find(':') + 2)) {
    base_ = name_.size() > 1 && name_.back() == '_' ? name_.substr(0, name_.size() - 1) : name_;
  }

  void check() const {
    check_loops();
    check_options();
    check_memory();
    check_bags();
    check_divisions();
    check_ranges();
    check_truths_as_bytes();
    check_class_weights();
    check_bytes_of_bool();
    check_unsafe_views();
    check_gaps_of_conjugated();
    check_shared_memory();
    check_matrix_rank();
    check_inverse_hermitian();
    check_circular_padding();
    check_group_norm();
    check_form_without_out();
    check_sums_as_integers();
    check_powers_as_real();
  }

 private:
  static void refuse_if(bool undefined, const char* why) {
    if (undefined) throw UndefinedResult(why);
  }

  template <typename Condition>
  bool any_input(const Condition& condition) const {
    for (size_t a = 0; a < stack_.size(); ++a) {
      if (schema_.arguments()[a].is_out()) continue;
      for (const at::Tensor& t : tensors_in(stack_[a])) {
        if (condition(t)) return true;
      }
    }
    return false;
  }

  // One step of a loop per order; of zeta functions, to which gradients of digamma() come, one per unit below zero.
  void check_loops() const {
    constexpr double kMost = 1e4;
    const auto far_below = [](const at::Tensor& t) { return t.lt(-kMost).any().item<bool>(); };
    for (const char* zeta : {"digamma", "special_psi", "polygamma", "special_zeta"})
      refuse_if(absl::StrContains(base_, zeta) && any_input(far_below), "a sum that takes minutes");
    if (!absl::StrContains(base_, "_polynomial_")) return;
    refuse_if(any_input(has_nan),
              "the recurrences of polynomials end at a NaN and return what they have not computed yet");
    const c10::IValue& order = stack_[1];
    const double most = order.isTensor() ? largest(order.toTensor()) : std::abs(order.toScalar().toDouble());
    refuse_if(!(most < kMost), "a polynomial of an order that takes minutes, or is none");
  }

  void check_options() const {
    // Not options of public operators.
    const auto option = [&](size_t k) { return stack_[k].toInt() >= 0 && stack_[k].toInt() <= 2; };
    refuse_if(base_.rfind("grid_sampler", 0) == 0 && !(option(2) && option(3)), "an interpolation that there is not");
    const bool margin = base_.rfind("multilabel_margin_loss", 0) == 0 || base_.rfind("multi_margin_loss", 0) == 0;
    refuse_if(margin && stack_[0].toTensor().numel() == 0,
              "the loss of an empty batch is memory that nothing was written to");
    // It is the mean of the elements that out= has before.
    if (base_ != "binary_cross_entropy" || !schema_.arguments().back().is_out()) return;
    refuse_if(stack_[3].toInt() != 0 || stack_.back().toTensor().sizes() != stack_[0].toTensor().sizes(),
              "the loss is reduced over the elements of out=");
  }

  // LibTorch reads or writes memory outside the tensors, and may crash, there or later.
  void check_memory() const {
    // LibTorch uses the stride of a dim of size 1 as the size of the next.
    const auto has_other_strides = [](const at::Tensor& t) {
      return t.strides() != at::IntArrayRef(row_major_strides(t.sizes()));
    };
    refuse_if(base_ == "_stack" && (any_input(has_other_strides) ||
                                    (stack_.back().isTensor() && has_other_strides(stack_.back().toTensor()))),
              "it copies memory, whatever the strides");
    refuse_if(base_ == "_stack" && stack_[1].toInt() < 0, "a dim counted from the end is a place before the memory");
    const auto has_negative = [](const at::Tensor& t) {
      const auto values = numbers(t);
      return std::any_of(values.begin(), values.end(), [](double v) { return v < 0; });
    };
    const auto repeats = schema_.argumentIndexWithName("repeats");
    refuse_if(base_ == "repeat_interleave" && repeats && stack_[*repeats].isTensor() &&
                  has_negative(stack_[*repeats].toTensor()),
              "what stands before a negative count is written to memory of the sum before the count is refused");
    const at::Tensor* input = stack_[0].isTensor() ? &stack_[0].toTensor() : nullptr;
    if (input == nullptr || !input->defined()) return;
    refuse_if(base_ == "pdist" && input->requires_grad() && input->size(0) == 0,
              "its gradient has no end for an empty batch");
    refuse_if(base_ == "linalg_ldl_solve", "LAPACK takes any pivots for places in memory");
    refuse_if(base_ == "linalg_eigvals" && !is_finite(*input), "LAPACK is not asked whether the matrix is finite");
    if (!absl::StrContains(base_, "batch_norm")) return;
    for (size_t k = 1; k < stack_.size(); ++k) {
      if (!stack_[k].isTensor() || !stack_[k].toTensor().defined() || schema_.arguments()[k].is_out()) continue;
      refuse_if(
          input->dim() < 2 || stack_[k].toTensor().numel() != input->size(1) || !stack_[k].toTensor().is_contiguous(),
          "batch_norm and its gradient trust the sizes of the other arguments, and read them as contiguous memory");
    }
    const auto training = schema_.argumentIndexWithName("training");
    refuse_if(training && stack_[*training].toBool() && schema_.arguments().back().is_out(),
              "it normalizes by what save_mean and save_invstd held before");
    refuse_if(base_ == "native_batch_norm" && training && !stack_[*training].toBool() &&
                  !(stack_[3].isTensor() && stack_[4].isTensor()),
              "it reads the running statistics, whether there are any or not");
  }

  // Bag offsets are not checked against the list of indices, nor indices against the table.
  void check_bags() const {
    if (!absl::StrContains(base_, "embedding_bag")) return;
    const at::Tensor table = stack_[0].toTensor(), where = stack_[1].toTensor(), bags = stack_[2].toTensor();
    const int64_t mode = stack_[4].toInt();
    refuse_if(table.dim() != 2 || where.dim() != 1 || bags.dim() != 1 || mode < 0 || mode > 2,
              "embedding_bag of other things than a table, a list of indices and one of bags");
    const auto rows = static_cast<double>(table.size(0));
    const auto indices = numbers(where), offsets = numbers(bags);
    const bool good = std::all_of(indices.begin(), indices.end(), [&](double i) { return i >= 0 && i < rows; }) &&
                      std::is_sorted(offsets.begin(), offsets.end()) && !offsets.empty() && offsets[0] == 0 &&
                      offsets.back() <= static_cast<double>(indices.size());
    refuse_if(!good, "embedding_bag of rows that there are not");
  }

  // An integer divided by -1 may overflow, which is a processor exception.
  void check_divisions() const {
    static const auto* const divisions = new Names{"gcd", "lcm", "remainder", "fmod", "floor_divide", "div", "divide"};
    const auto has_least = [](const at::Tensor& t) {
      if (!t.defined() || (t.scalar_type() != at::kInt && t.scalar_type() != at::kLong)) return false;
      const double least = t.scalar_type() == at::kInt ? -0x1p31 : -0x1p63;
      const auto values = numbers(t);
      return std::any_of(values.begin(), values.end(), [&](double v) { return v == least; });
    };
    refuse_if(divisions->count(base_) > 0 && any_input(has_least), "the least integer divided");
  }

  // The library's mean is computed from the ranks' means, since a sum of half numbers may overflow; weights that cancel
  // are not documented.
  void check_class_weights() const {
    const auto weight = schema_.argumentIndexWithName("weight");
    if ((base_.rfind("nll_loss", 0) != 0 && base_ != "cross_entropy_loss") || !weight || !stack_[*weight].isTensor())
      return;
    const at::Tensor t = stack_[*weight].toTensor();
    if (!t.defined() || !c10::isReducedFloatingType(t.scalar_type())) return;
    const auto values = numbers(t);
    refuse_if(std::any_of(values.begin(), values.end(), [](double v) { return v < 0; }),
              "a mean by weights that cancel");
  }

  // One number is tested for 0, several are converted to bytes first.
  void check_truths_as_bytes() const {
    if ((base_ != "all" && base_ != "any") || !schema_.arguments().back().is_out()) return;
    const at::ScalarType from = stack_[0].toTensor().scalar_type();
    refuse_if(stack_.back().toTensor().scalar_type() == at::kByte && from != at::kByte && from != at::kBool,
              "whether numbers are 0 as bytes");
  }

  // A step below one becomes 0 for integers.
  void check_ranges() const {
    const auto step = schema_.argumentIndexWithName("step");
    if ((base_ != "range" && base_ != "arange") || !step || !schema_.arguments().back().is_out()) return;
    const bool whole = c10::isIntegralType(stack_.back().toTensor().scalar_type(), /*includeBool=*/true);
    refuse_if(whole && std::abs(stack_[*step].toScalar().toDouble()) < 1, "integers in steps of nothing");
  }

  // Writing bytes to a Bool, or reading them as one: values other than 0 and 1 have no meaning.
  void check_bytes_of_bool() const {
    if (name_ != "view" || !stack_[1].isInt() || schema_.overload_name() != "dtype") return;
    const bool from = stack_[0].toTensor().scalar_type() == at::kBool, to = stack_[1].toScalarType() == at::kBool;
    refuse_if(from != to, "a Bool seen as another dtype, or another dtype as Bool");
  }

  // They share memory with their argument, except for a conjugated or negated one, which LibTorch copies.
  void check_unsafe_views() const {
    static const auto* const unsafe = new Names{"unsafe_split", "unsafe_split_with_sizes", "_unsafe_view"};
    refuse_if(unsafe->count(name_) > 0 && any_input([](const at::Tensor& t) { return t.is_conj() || t.is_neg(); }),
              "an unsafe view of what is conjugated");
  }

  static bool is_finite(const at::Tensor& t) {
    const auto values = numbers(t);
    return std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
  }

  // Operators whose results have the gaps between the elements of their first argument. For a lazily conjugated or
  // negated one LibTorch first makes a dense tensor, so the strides depend on a bit that layouts do not have.
  void check_gaps_of_conjugated() const {
    static const auto* const cloning =
        new Names{"copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"};
    if (cloning->count(name_) == 0) return;
    for (const at::Tensor& t : tensors_in(stack_[0])) {
      refuse_if((t.is_conj() || t.is_neg()) && !t.is_non_overlapping_and_dense(),
                "a clone with the gaps of what is conjugated");
    }
  }

  // Which of several values written to one place remains depends on the order of loops; only fills have no order.
  void check_shared_memory() const {
    static const auto* const filling = new Names{"fill_", "zero_"};
    // These write to a clone with the first argument's strides.
    static const auto* const cloning =
        new Names{"copy", "slice_scatter", "select_scatter", "diagonal_scatter", "_foreach_copy"};
    for (size_t a = 0; a < stack_.size(); ++a) {
      const auto* alias = schema_.arguments()[a].alias_info();
      const bool written = alias != nullptr && alias->isWrite() && filling->count(name_) == 0;
      if (!written && !(a == 0 && cloning->count(name_) > 0)) continue;
      for (const at::Tensor& t : tensors_in(stack_[a])) refuse_if(overlaps(t), "writes several elements to one place");
    }
  }

  // LibTorch resizes out= to the batch and back; this is not documented.
  void check_matrix_rank() const {
    if (name_ != "linalg_matrix_rank" || !schema_.arguments().back().is_out()) return;
    const int64_t batch = stack_[0].toTensor().dim() - 2;
    for (size_t k = 1; k + 1 < stack_.size(); ++k) {
      for (const at::Tensor& tolerance : tensors_in(stack_[k]))
        refuse_if(tolerance.defined() && tolerance.dim() > batch, "a tolerance of more dims than the batch");
    }
  }

  // LibTorch writes the result to a new tensor, and leaves an out= tensor without elements unchanged.
  void check_inverse_hermitian() const {
    if (name_ != "fft_ihfftn" && name_ != "fft_ihfft2" && name_ != "fft_ihfft") return;
    if (schema_.arguments().back().is_out())
      refuse_if(stack_.back().toTensor().numel() == 0, "an out= that is not resized");
  }

  // Circular padding with negative padding on one side leaves parts of its result unwritten.
  void check_circular_padding() const {
    const bool circular =
        name_ == "_pad_circular" || (name_ == "pad" && stack_[2].isString() && stack_[2].toStringRef() == "circular");
    if (!circular || !stack_[1].isIntList()) return;
    for (int64_t n : stack_[1].toIntVector()) refuse_if(n < 0, "circular padding by less than nothing");
  }

  // The sizes are given separately, and only their product is checked.
  void check_group_norm() const {
    if (name_ != "native_group_norm" && name_ != "native_group_norm_backward") return;
    const auto arg = [&](const char* name) { return stack_[*schema_.argumentIndexWithName(name)]; };
    const at::Tensor input = arg("input").toTensor();
    const bool said = input.dim() >= 2 && arg("N").toInt() == input.size(0) && arg("C").toInt() == input.size(1);
    refuse_if(!said, "group norm of other sizes than the tensor's");
  }

  // LibTorch is inconsistent about some calls with out=: the form that returns a new tensor rejects them, since it
  // computes in the dtype of an argument (huber_loss of bools) or views its product in a way that not all strides allow
  // (kron). An out= without elements gets the layout of that form's result, so the library has to call it.
  void check_form_without_out() const {
    if (!schema_.arguments().back().is_out() || (name_ != "kron" && !has_empty_out())) return;
    const auto op = c10::Dispatcher::singleton().findSchema(schema_.operator_name());
    const auto functional = op ? functional_form(*op) : std::nullopt;
    if (!functional) return;
    torch::jit::Stack arguments;
    for (const c10::Argument& argument : functional->schema().arguments()) {
      const auto a = schema_.argumentIndexWithName(argument.name());
      arguments.push_back(a ? stack_[*a] : *argument.default_value());
      if (argument.name() != "dtype" || !arguments.back().isNone() || !stack_.back().isTensor()) continue;
      arguments.pop_back();
      arguments.emplace_back(stack_.back().toTensor().scalar_type());
    }
    try {
      functional->callBoxed(arguments);
    } catch (const c10::Error&) {
      refuse_if(true, "an out= form that takes what the one without refuses");
    }
  }

  bool has_empty_out() const {
    for (size_t a = 0; a < stack_.size(); ++a) {
      if (schema_.arguments()[a].is_out() && stack_[a].isTensor() && stack_[a].toTensor().numel() == 0) return true;
    }
    return false;
  }

  // No integer represents an infinity.
  void check_sums_as_integers() const {
    static const auto* const sums = new Names{"sum", "nansum", "prod", "cumsum", "cumprod"};
    const auto dtype = schema_.argumentIndexWithName("dtype");
    if (sums->count(name_) == 0 || !dtype || !stack_[*dtype].isInt()) return;
    const bool whole = c10::isIntegralType(stack_[*dtype].toScalarType(), /*includeBool=*/true);
    refuse_if(whole && !is_finite(stack_[0].toTensor()), "a sum of infinities as integers");
  }

  // For one number LibTorch takes the real part, for several the absolute values.
  void check_powers_as_real() const {
    const auto dtype = schema_.argumentIndexWithName("dtype");
    if ((name_ != "linalg__powsum" && name_ != "_foreach_powsum") || !dtype || !stack_[*dtype].isInt()) return;
    const bool real = !c10::isComplexType(stack_[*dtype].toScalarType());
    for (const at::Tensor& t : tensors_in(stack_[0]))
      refuse_if(real && t.is_complex(), "real powers of complex numbers");
  }

  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& stack_;
  std::string name_, base_;
};

}  // namespace

void check_defined(const c10::FunctionSchema& schema, const torch::jit::Stack& arguments) {
  Call(schema, arguments).check();
}

}  // namespace dtensor::fuzz
