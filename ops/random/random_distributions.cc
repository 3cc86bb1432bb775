// Random distributions whose parameters are tensors: poisson, binomial, gamma, dirichlet; and the noise of rrelu.
//
// The value at a place depends on its parameters and on a random number drawn for it as in random.h, so on the seed and
// the place, not on mesh or layout. That number is the key of a separate stream, since these distributions need a
// varying count of numbers. For a GPU, values are computed on the host.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/Distributions.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/kernels/philox.h"
#include "ops/pointwise/pointwise.h"
#include "ops/support/arguments.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// ------------------------------------------------------------ one value

// 64 random bits at a time, as <random> wants them.
class KeyedStream {
 public:
  using result_type = uint64_t;
  explicit KeyedStream(uint64_t key) : key_(key) {}
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return std::numeric_limits<uint64_t>::max(); }
  uint64_t operator()() {
    const PhiloxWords x = philox4x32(key_, counter_++);
    return static_cast<uint64_t>(x.w[0]) << 32 | x.w[1];
  }
  double uniform() {
    const PhiloxWords x = philox4x32(key_, counter_++);
    return unit_real(x.w[0], x.w[1]);
  }
  double normal() { return draw_real({RandomKind::kNormal, 0, 1}, philox4x32(key_, counter_++)); }

 private:
  uint64_t key_, counter_ = 0;
};

double sample_poisson(double rate, double, KeyedStream& stream) {
  TORCH_CHECK(rate >= 0, "invalid Poisson rate, expected rate to be non-negative, but got ", rate);
  return rate == 0 ? 0 : static_cast<double>(std::poisson_distribution<int64_t>(rate)(stream));
}

double sample_binomial(double count, double probability, KeyedStream& stream) {
  const auto uniform = [&] { return stream.uniform(); };
  BaseSampler<double, decltype(uniform)> sampler(uniform);
  return ::sample_binomial<double, double, decltype(uniform)>(count, probability, sampler);
}

double sample_gamma(double alpha, double, KeyedStream& stream) {
  const auto uniform = [&] { return stream.uniform(); };
  const auto normal = [&] { return stream.normal(); };
  BaseSampler<double, decltype(uniform)> uniform_sampler(uniform);
  BaseSampler<double, decltype(normal)> normal_sampler(normal);
  return ::sample_gamma<double, double, decltype(uniform), decltype(normal)>(alpha, uniform_sampler, normal_sampler);
}

// The logarithm of a gamma, for shapes so small that each of the gammas may be 0 although their quotients are not.
double sample_log_gamma(double alpha, double, KeyedStream& stream) {
  if (alpha >= 1) return std::log(sample_gamma(alpha, 0, stream));
  const double boosted = std::log(sample_gamma(alpha + 1, 0, stream));
  return boosted + std::log1p(-stream.uniform()) / alpha;
}

using Sample = double (*)(double a, double b, KeyedStream& stream);

// ------------------------------------------------------------ a tensor

// Draws parts on the CPU; `keys` and parameters have the shape of the result.
at::Tensor sample_part(Sample sample, const at::Tensor& a, const at::Tensor& b, const at::Tensor& keys) {
  const at::Tensor result = at::empty(a.sizes(), at::TensorOptions(at::kDouble));
  const double *pa = a.const_data_ptr<double>(), *pb = b.const_data_ptr<double>();
  const int64_t* key = keys.const_data_ptr<int64_t>();
  double* out = result.mutable_data_ptr<double>();
  for (int64_t k = 0; k < result.numel(); ++k) {
    KeyedStream stream(static_cast<uint64_t>(key[k]));
    out[k] = sample(pa[k], pb[k], stream);
  }
  return result;
}

at::Tensor on_host(const at::Tensor& part, c10::ScalarType dtype) {
  return part.to(at::TensorOptions(at::kCPU).dtype(dtype)).contiguous();
}

// Values for parameters `a` and `b` of one shape, in the layout of `a`, reduced if Partial.
at::Tensor sample_all(const c10::OperatorHandle& op, Sample sample, const at::Tensor& given_a,
                      const at::Tensor& given_b, const Arguments& args) {
  const Placements layout = without_partials(spec_of(given_a)->placements());
  const auto laid_out = [&](const at::Tensor& t, const char* name) {
    const at::Tensor whole = is_dtensor(t) ? t : replicate_plain(t, spec_of(given_a)->mesh());
    return redistribute_below_autograd(whole, layout, call_cause(op, name, t));
  };
  const at::Tensor a = laid_out(given_a, "self");
  const at::Tensor keys = at::empty_like(a, a.options().dtype(at::kLong), at::MemoryFormat::Contiguous);
  const at::Tensor result = at::empty_like(a, at::MemoryFormat::Contiguous);
  if (!spec_of(a)->mesh().world().has_data()) return result;
  keys.random_(args.generator());
  const at::Tensor b = given_b.defined() ? laid_out(given_b, "other") : a;
  LocalGuard guard;
  const RankTensors &of_a = meta_for_read(a).locals, &of_b = meta_for_read(b).locals,
                    &of_keys = meta_for_read(keys).locals, &of_result = meta_for_write(result).locals;
  for (size_t i = 0; i < of_a.size(); ++i)
    of_result[i].copy_(sample_part(sample, on_host(of_a[i], at::kDouble), on_host(of_b[i], at::kDouble),
                                   on_host(of_keys[i], at::kLong)));
  return result;
}

void check_floating(const at::Tensor& self, const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", op.schema().name(),
                              "\" not implemented for '", self.scalar_type(), "'");
}

void give(const c10::OperatorHandle& op, Stack& stack, const at::Tensor& result) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
}

// poisson(self), _standard_gamma(self).
template <Sample kSample>
void of_one(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  check_floating(args.tensor("self"), op);
  give(op, stack, sample_all(op, kSample, args.tensor("self"), {}, args));
}

// binomial(count, prob), which broadcast.
void binomial(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  at::Tensor count = args.tensor("count"), prob = args.tensor("prob");
  check_floating(count, op);
  check_floating(prob, op);
  if (!is_dtensor(count)) count = replicate_plain(count, spec_of(prob)->mesh());
  const auto sizes = at::infer_size(count.sizes(), prob.sizes());
  give(op, stack, sample_all(op, sample_binomial, count.expand(sizes), prob.expand(sizes), args));
}

// Gammas divided by their sum, by their logarithms: no sum is 0.
void dirichlet(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  check_floating(self, op);
  const at::Tensor logs = sample_all(op, sample_log_gamma, self.to(at::kDouble), {}, args);
  give(op, stack, logs.softmax(-1).to(self.scalar_type()));
}

// ------------------------------------------------------------ rrelu, dropout

struct Rectified {
  at::Tensor result, noise;
};

Rectified rrelu(const Arguments& args) {
  const at::Tensor self = args.tensor("self"), noise = args.tensor("noise");
  const double lower = args.number("lower"), upper = args.number("upper");
  TORCH_CHECK(lower <= upper, "Lower bound should be less than or equal to the upper bound, but got ", lower, " and ",
              upper);
  TORCH_CHECK(self.sizes() == noise.sizes(),
              "noise tensor shape must match self tensor shape. Got self.shape = ", self.sizes(),
              " noise.shape = ", noise.sizes());
  if (!args["training"].toBool()) return {at::leaky_relu(self, (lower + upper) / 2), noise};
  const at::Tensor negative = self.le(0);
  const at::Tensor slopes =
      at::empty_like(negative, self.options().dtype(self.scalar_type())).uniform_(lower, upper, args.generator());
  const at::Tensor drawn = at::where(negative, slopes, at::ones_like(slopes));
  return {at::mul(self, drawn), drawn};
}

// rrelu_with_noise(self, noise, lower, upper, training, generator), also in place and with out=.
void rrelu_with_noise(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self"), noise = args.tensor("noise");
  Rectified r = rrelu(args);
  if (args["training"].toBool()) noise.copy_(r.noise);
  const bool in_place = op.schema().name().back() == '_';
  give(op, stack, in_place ? self.copy_(r.result) : write_out(args.out(), r.result, op));
}

// The same, with the noise as a second result.
void rrelu_functional(const c10::OperatorHandle& op, Stack& stack) {
  const Rectified r = rrelu(Arguments(op, stack));
  give(op, stack, r.result);
  stack.emplace_back(r.noise.clone());
}

// _fused_dropout(self, p, generator): p is the probability to keep an element.
void fused_dropout(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const double stays = args.number("p");
  TORCH_CHECK(0 <= stays && stays <= 1, "_fused_dropout: p must be between 0 and 1, but is ", stays);
  const at::Tensor mask = at::empty_like(self, self.options().dtype(at::kByte)).bernoulli_(stays, args.generator());
  const at::Tensor result = at::mul(at::mul(self, mask), stays == 0 ? 0 : 1 / stays);
  give(op, stack, result);
  stack.emplace_back(mask);
}

// Results are contiguous for any strides of the arguments.
OutputMetas contiguous_elementwise(const OpCall& call) {
  OutputMetas metas = infer_elementwise(call);
  for (auto& meta : metas.tensors) meta->strides = row_major_strides({meta->sizes.data(), meta->sizes.size()});
  return metas;
}

}  // namespace

const RuleFamily random_distributions_rules("random_distributions", [](RuleRegistry& registry) {
  registry.add_handler("aten::poisson", of_one<sample_poisson>);
  registry.add_handler("aten::_standard_gamma", of_one<sample_gamma>);
  registry.add_handler("aten::binomial", binomial);
  registry.add_handler("aten::_sample_dirichlet", dirichlet);
  for (const char* op : {"aten::rrelu_with_noise", "aten::rrelu_with_noise_"})
    registry.add_handler(op, rrelu_with_noise);
  registry.add_handler("aten::rrelu_with_noise_functional", rrelu_functional);
  registry.add_handler("aten::_fused_dropout", fused_dropout);
  OpRule gradient = pointwise_op();
  gradient.metas = contiguous_elementwise;
  for (const char* op : {"aten::_standard_gamma_grad", "aten::_dirichlet_grad"}) registry.add(op, gradient);
});

}  // namespace dtensor::internal
