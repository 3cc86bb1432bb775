// Operators that write to several arguments: each holds the same afterwards as with plain ATen, and the results are
// those arguments.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "propagation/functional_form.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Values = std::vector<c10::IValue>;
using Ints = std::vector<int64_t>;

struct Row {
  std::string op;
  Values args;  // all but the out= ones
};

const c10::IValue kNone;

at::Tensor floats(at::IntArrayRef sizes) { return at::rand(sizes, at::kDouble); }

std::vector<Row> reductions() {
  const auto x = floats({6, 5});
  return {
      {"aten::aminmax.out", {x, 1, true}},
      {"aten::max.dim_max", {x, 1, false}},
      {"aten::min.dim_min", {x, 1, false}},
      {"aten::median.dim_values", {x, 1, false}},
      {"aten::nanmedian.dim_values", {x, 1, false}},
      {"aten::mode.values", {x, 1, false}},
      {"aten::kthvalue.values", {x, 2, 1, false}},
      {"aten::topk.values", {x, 2, 1, true, true}},
      {"aten::sort.values", {x, 1, false}},
      {"aten::sort.values_stable", {x, true, 1, false}},
      {"aten::cummax.out", {x, 1}},
      {"aten::cummin.out", {x, 1}},
      {"aten::_cummax_helper", {x, at::zeros({6, 5}, at::kDouble), at::zeros({6, 5}, at::kLong), 1}},
      {"aten::_cummin_helper", {x, at::zeros({6, 5}, at::kDouble), at::zeros({6, 5}, at::kLong), 1}},
      {"aten::std_mean.correction_out", {x, Ints{1}, 1, false}},
      {"aten::var_mean.correction_out", {x, Ints{1}, 1, false}},
      {"aten::frexp.Tensor_out", {x}},
      {"aten::histogram.bin_ct_out", {x, 4, kNone, kNone, false}},
      {"aten::histogram.bins_tensor_out", {x, at::tensor({0., 0.5, 1.}, at::kDouble), kNone, false}},
      {"aten::_unique.out", {at::tensor({3, 1, 3, 0}, at::kLong), true, true}},
      {"aten::_unique2.out", {at::tensor({3, 1, 3, 0}, at::kLong), true, true, true}},
      {"aten::unique_dim.out", {at::tensor({3, 1, 3, 0}, at::kLong), 0, true, true, true}},
      {"aten::unique_consecutive.out", {at::tensor({3, 3, 1, 0}, at::kLong), true, true, kNone}},
      {"aten::unique_dim_consecutive.out", {at::tensor({3, 3, 1, 0}, at::kLong), 0, true, true}},
  };
}

std::vector<Row> of_matrices() {
  const auto a = floats({4, 4}), b = floats({4, 2});
  const auto spd = a.mm(a.t()) + 4 * at::ones({4, 4}, at::kDouble).diag().diag();
  const auto lu = call_op("aten::linalg_lu_factor", {spd, true});
  return {
      {"aten::_linalg_det.result", {spd}},
      {"aten::_linalg_eigh.eigenvalues", {spd, "L", true}},
      {"aten::linalg_eigh.eigvals", {spd, "L"}},
      {"aten::_linalg_slogdet.sign", {spd}},
      {"aten::linalg_slogdet.out", {spd}},
      {"aten::slogdet.out", {spd}},
      {"aten::_linalg_solve_ex.result", {spd, b, true, false}},
      {"aten::linalg_solve_ex.out", {spd, b, true, false}},
      {"aten::_linalg_svd.U", {spd, false, true, kNone}},
      {"aten::linalg_svd.U", {spd, true, kNone}},
      {"aten::svd.U", {spd, true, true}},
      {"aten::geqrf.a", {spd}},
      {"aten::linalg_cholesky_ex.L", {spd, false, false}},
      {"aten::linalg_eig.out", {spd}},
      {"aten::linalg_inv_ex.inverse", {spd, false}},
      {"aten::linalg_ldl_factor.out", {spd, false}},
      {"aten::linalg_ldl_factor_ex.out", {spd, false, false}},
      {"aten::linalg_lstsq.out", {spd, b, kNone, kNone}},
      {"aten::linalg_lu.out", {spd, true}},
      {"aten::linalg_lu_factor.out", {spd, true}},
      {"aten::linalg_lu_factor_ex.out", {spd, true, false}},
      {"aten::linalg_qr.out", {spd, "reduced"}},
      {"aten::qr.Q", {spd, true}},        // up to LibTorch 2.13
      {"aten::linalg_polar.out", {spd}},  // since 2.15
      {"aten::lu_unpack.out", {lu[0], lu[1], true, true}},
      {"aten::triangular_solve.X", {b, spd, true, false, false}},
  };
}

std::vector<Row> normalisations() {
  const auto x = floats({4, 6, 3}), w = floats({6}), b = floats({6}), mean = floats({6}), var = floats({6}) + 0.5;
  const auto g = floats({4, 6, 3}), invstd = floats({6}) + 0.5, grouped = floats({4, 2}), square = floats({4, 6});
  const auto layer_mean = floats({4, 6, 1}), layer_rstd = floats({4, 6, 1}), w3 = floats({3}), b3 = floats({3});
  const c10::List<bool> all({true, true, true});
  return {
      {"aten::_native_batch_norm_legit", {x, w, b, mean, var, true, 0.1, 1e-5}},
      {"aten::_native_batch_norm_legit.out", {x, w, b, mean, var, true, 0.1, 1e-5}},
      {"aten::_native_batch_norm_legit.no_stats_out", {x, w, b, true, 0.1, 1e-5}},
      {"aten::_native_batch_norm_legit_no_training.out", {x, w, b, mean, var, 0.1, 1e-5}},
      {"aten::_batch_norm_with_update", {x, w, b, mean, var, 0.1, 1e-5}},
      {"aten::_batch_norm_with_update.out", {x, w, b, mean, var, 0.1, 1e-5}},
      {"aten::_batch_norm_no_update.out", {x, w, b, mean, var, 0.1, 1e-5}},
      {"aten::native_batch_norm.out", {x, w, b, mean, var, true, 0.1, 1e-5}},
      {"aten::native_batch_norm_backward.out", {g, x, w, mean, var, mean, invstd, true, 1e-5, all}},
      {"aten::batch_norm_update_stats.out", {x, mean, var, 0.1}},
      {"aten::native_group_norm.out", {x, w, b, 4, 6, 3, 2, 1e-5}},
      {"aten::native_group_norm_backward.out", {g, x, grouped, grouped, w, 4, 6, 3, 2, all}},
      {"aten::native_layer_norm.out", {x, Ints{3}, w3, b3, 1e-5}},
      {"aten::native_layer_norm_backward.out", {g, x, Ints{3}, layer_mean, layer_rstd, w3, b3, all}},
      {"aten::_weight_norm_interface.out", {square, floats({4, 1}), 0}},
      {"aten::_weight_norm_interface_backward.out", {square, floats({4, 6}), floats({4, 1}), floats({4, 1}) + 1, 0}},
  };
}

std::vector<Row> of_images() {
  const auto x = floats({2, 3, 6, 6}), w = floats({4, 3, 2, 2}), volume = floats({2, 2, 4, 4, 4});
  const auto grid = floats({2, 4, 4, 2}), g = floats({2, 3, 4, 4}), volume_grid = floats({2, 3, 3, 3, 3});
  const c10::List<bool> all({true, true, true}), both({true, true});
  const Ints two = {2, 2}, one = {1, 1}, none = {0, 0};
  return {
      {"aten::adaptive_max_pool2d.out", {x, Ints{3, 3}}},
      {"aten::adaptive_max_pool3d.out", {volume, Ints{2, 2, 2}}},
      {"aten::max_pool2d_with_indices.out", {x, two, two, none, one, false}},
      {"aten::max_pool3d_with_indices.out",
       {volume, Ints{2, 2, 2}, Ints{2, 2, 2}, Ints{0, 0, 0}, Ints{1, 1, 1}, false}},
      {"aten::fractional_max_pool2d.output", {x, two, Ints{3, 3}, floats({2, 3, 2})}},
      {"aten::fractional_max_pool3d.output", {volume, Ints{2, 2, 2}, Ints{2, 2, 2}, floats({2, 2, 3})}},
      {"aten::convolution_backward.out", {floats({2, 4, 5, 5}), x, w, Ints{4}, one, none, one, false, none, 1, all}},
      {"aten::_slow_conv2d_backward.output_mask_out", {floats({2, 4, 5, 5}), x, w, two, one, none, all}},
      {"aten::grid_sampler_2d_backward.out", {g, x, grid, 0, 0, false, both}},
      {"aten::grid_sampler_3d_backward.out", {floats({2, 2, 3, 3, 3}), volume, volume_grid, 0, 0, false, both}},
  };
}

std::vector<Row> of_sequences_and_losses() {
  const auto table = floats({7, 3}), scores = floats({6, 5}).log(), images = floats({2, 5, 3, 3}).log();
  const auto ids = at::tensor({1, 4, 6, 0, 2, 3}, at::kLong), offsets = at::tensor({0, 2, 4}, at::kLong);
  const auto observed = at::rand({3, 4}, at::kFloat);
  return {
      {"aten::_embedding_bag.out", {table, ids, offsets, false, 0, false, kNone, false, -1}},
      {"aten::_embedding_bag_forward_only.out", {table, ids, offsets, false, 1, false, kNone, false, -1}},
      {"aten::nll_loss_forward.output", {scores, at::tensor({4, 0, 2, 1, 1, 3}, at::kLong), kNone, 1, -100}},
      {"aten::nll_loss2d_forward.output", {images, at::ones({2, 3, 3}, at::kLong), kNone, 1, -100}},
      {"aten::multilabel_margin_loss_forward.output", {scores, at::zeros({6, 5}, at::kLong), 1}},
      {"aten::log_sigmoid_forward.output", {scores}},
      {"aten::fake_quantize_per_tensor_affine_cachemask.out", {observed, 0.1, 0, 0, 255}},
      {"aten::fake_quantize_per_channel_affine_cachemask.out",
       {observed, at::full({3}, 0.1, at::kFloat), at::zeros({3}, at::kInt), 0, 0, 255}},
      {"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.out",
       {observed, at::full({1}, 0.1, at::kFloat), at::zeros({1}, at::kInt), at::ones({1}, at::kLong), 0, 255}},
      {"aten::_amp_update_scale_", {at::full({1}, 8.f), at::zeros({1}, at::kInt), at::zeros({1}), 2., 0.5, int64_t{1}}},
      {"aten::_amp_foreach_non_finite_check_and_unscale_",
       {c10::List<at::Tensor>({at::full({3}, 4.f)}), at::zeros({1}), at::full({1}, 0.5f)}},
  };
}

// Not called here, by name prefix.
const std::pair<const char*, const char*> kElsewhere[] = {
    {"aten::_pack_padded_sequence", "batch sizes are plain metadata: packed_sequences_test"},
    {"aten::_ctc_loss", "what its kernels leave unwritten differs; loss_test"},
    {"aten::_amp_update_scale.out", "its functional form gives two tensors for one out="},
    {"aten::_aminmax", "deprecated; refused by name, as their out= forms have no meta kernel"},
    {"aten::_fused_adam", "fused_optimizers_test"},
    {"aten::_fused_sgd", "fused_optimizers_test"},
    {"aten::_fused_adagrad", "fused_optimizers_test"},
    {"aten::_amp_foreach_non_finite_check_and_unscale.out", "returns nothing, takes a list for out="},
    {"aten::_fused_dropout", "random numbers: random_test"},
    {"aten::native_dropout", "random numbers: random_test"},
    {"aten::rrelu_with_noise", "random numbers: random_distributions_test"},
    {"aten::_fused_moving_avg_obs_fq_helper", "observers of quantisation: no rule"},
    {"aten::fused_moving_avg_obs_fake_quant", "observers of quantisation: no rule"},
    {"aten::_native_multi_head_attention", "encoder_layer_test"},
    {"aten::_transform_bias_rescale_qkv", "encoder_layer_test"},
    {"aten::batch_norm_stats", "CUDA alone"},
    {"aten::batch_norm_backward_reduce", "CUDA alone"},
    {"aten::batch_norm_gather_stats", "CUDA alone"},
    {"aten::_slow_conv2d_backward.grad_input", "no form of the same arguments returns tensors"},
    {"aten::_thnn_fused", "CUDA alone"},
    {"aten::convolution_backward_overrideable", "for backends outside of LibTorch"},
    {"aten::linear_backward", "nested tensors and MPS alone"},
    {"aten::matmul_backward", "nested tensors alone"},
    {"aten::cudnn_", "CUDA alone"},
    {"aten::_cudnn_", "CUDA alone"},
    {"aten::miopen_", "ROCm alone"},
    {"aten::mps_", "MPS alone"},
    {"aten::_lstm_mps", "MPS alone"},
    {"aten::lstm_mps", "MPS alone"},
    {"aten::mkldnn_", "MKL-DNN tensors alone"},
    {"aten::update", "dictionaries"},
};

std::optional<c10::OperatorHandle> find_op(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const auto& some : {reductions(), of_matrices(), normalisations(), of_images(), of_sequences_and_losses()}) {
    for (const Row& row : some) {
      if (find_op(row.op)) rows.push_back(row);  // not every release of LibTorch has each
    }
  }
  return rows;
}

bool is_named(const c10::FunctionSchema& schema) {
  return schema.overload_name().find("dimname") != std::string::npos ||
         schema.overload_name().find("names_dim") != std::string::npos;
}

size_t count_written(const c10::FunctionSchema& schema) {
  return static_cast<size_t>(std::count_if(schema.arguments().begin(), schema.arguments().end(), [](const auto& a) {
    return a.alias_info() != nullptr && a.alias_info()->isWrite();
  }));
}

template <typename F>
c10::IValue map_tensors(const c10::IValue& value, const F& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
  return list;
}

std::vector<at::Tensor> tensors_of(const Values& args) {
  std::vector<at::Tensor> result;
  for (const c10::IValue& value : args) {
    if (value.isTensor()) result.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) result.push_back(t);
    }
  }
  return result;
}

// The out= arguments of the call, with the sizes and dtypes of the functional form's results, and other values.
Values outs_of(const Row& row, const c10::OperatorHandle& op) {
  if (std::none_of(op.schema().arguments().begin(), op.schema().arguments().end(), [](auto& a) { return a.is_out(); }))
    return {};
  auto form = functional_form(op);
  if (!form) form = c10::Dispatcher::singleton().findSchema({op.schema().name(), ""});
  REQUIRE(form);
  torch::jit::Stack stack;
  for (const auto& argument : form->schema().arguments()) {
    const auto a = op.schema().argumentIndexWithName(argument.name());
    stack.push_back(a ? map_tensors(row.args[*a], [](const at::Tensor& t) { return t.clone(); })
                      : *argument.default_value());
  }
  form->callBoxed(stack);
  Values outs;
  for (const at::Tensor& t : tensors_of(stack)) outs.emplace_back(at::ones(t.sizes(), t.scalar_type()));
  return outs;
}

bool is_split(const at::Tensor& t) { return t.dim() > 0 && t.size(0) > 1; }

// The call with the inputs in the layouts `given` and the out= tensors replicated. False: it was rejected.
bool matches(const Row& row, const Values& outs, const Values& expected, const Placement& given) {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto laid_out = [&](const c10::IValue& value, const Placement& as) {
    return map_tensors(value, [&](const at::Tensor& t) {
      return t.defined() ? lay_out(t, mesh, {is_split(t) ? as : Placement(Replicate())}) : t;
    });
  };
  Values args;
  for (const c10::IValue& value : row.args) args.push_back(laid_out(value, given));
  for (const c10::IValue& value : outs) args.push_back(laid_out(value, Replicate()));
  CAPTURE(row.op, to_string(Placements{given}));
  if (given.is_sharded()) {
    try {
      call_op(row.op, args);
    } catch (const c10::Error&) {
      return false;
    }
  } else {
    call_op(row.op, args);
  }
  const auto actual = tensors_of(args), plain = tensors_of(expected);
  REQUIRE(actual.size() == plain.size());
  for (size_t k = 0; k < actual.size(); ++k) {
    CAPTURE(k);
    if (plain[k].defined()) CHECK(difference(actual[k], plain[k], 1e-7) == std::nullopt);
  }
  return true;
}

}  // namespace

TEST_CASE("operators that write to several arguments write to each", "[ops][out]") {
  int split = 0;
  for (const Row& row : all_rows()) {
    INFO(row.op);
    const c10::OperatorHandle op = *find_op(row.op);
    const Values outs = outs_of(row, op);
    Values expected;
    for (const Values& some : {row.args, outs}) {
      for (const c10::IValue& value : some)
        expected.push_back(map_tensors(value, [](const at::Tensor& t) { return t.defined() ? t.clone() : t; }));
    }
    call_op(row.op, expected);
    CHECK(matches(row, outs, expected, Replicate()));
    split += matches(row, outs, expected, Shard(0)) ? 1 : 0;
  }
  CHECK(split > 40);  // the others are rejected by name
}

TEST_CASE("every operator that writes to several arguments is called above or listed with a reason", "[ops][out]") {
  std::set<std::string> called;
  for (const Row& row : all_rows()) called.insert(row.op);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || name.name.rfind("aten::", 0) != 0 || count_written(op->schema()) < 2 || is_named(op->schema())) continue;
    const std::string full = c10::toString(name);
    const bool elsewhere = std::any_of(std::begin(kElsewhere), std::end(kElsewhere),
                                       [&](const auto& e) { return full.rfind(e.first, 0) == 0; });
    CAPTURE(full);
    CHECK((called.count(full) == 1) != elsewhere);
  }
}

}  // namespace dtensor::testing
