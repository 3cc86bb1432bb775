// Calls at the limits of what ATen accepts: empty tensors, arguments of other dtypes, unusual strides.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using OptionalTensors = c10::List<std::optional<at::Tensor>>;

struct CornerCase {
  std::string op;
  std::vector<c10::IValue> args;
};

const c10::IValue kAbsent;

c10::IValue laid_out(const c10::IValue& value, const DeviceMesh& mesh, int64_t dim) {
  const auto one = [&](const at::Tensor& t) {
    return lay_out(t, mesh, {dim >= 0 && dim < t.dim() ? Placement(Shard(dim)) : Placement(Replicate())});
  };
  if (value.isTensor()) return one(value.toTensor());
  if (!value.isOptionalTensorList()) return value;
  OptionalTensors result;
  for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
    result.push_back(t ? std::optional(one(*t)) : t);
  return result;
}

// In every layout of one kind on three ranks.
void check_case(const CornerCase& call) {
  std::vector<c10::IValue> plain;
  for (const auto& a : call.args) plain.push_back(a.isTensor() ? c10::IValue(a.toTensor().clone()) : a);
  const std::vector<at::Tensor> expected = call_op(call.op, plain);
  const DeviceMesh& mesh = test_meshes()[2];
  for (int64_t dim = -1; dim < 3; ++dim) {
    CAPTURE(call.op, dim);
    std::vector<c10::IValue> args;
    for (const auto& a : call.args) args.push_back(laid_out(a, mesh, dim));
    std::vector<at::Tensor> actual;
    REQUIRE_NOTHROW(actual = call_op(call.op, args));
    REQUIRE(actual.size() == expected.size());
    for (size_t k = 0; k < actual.size(); ++k) CHECK(difference(actual[k], expected[k]).value_or("") == "");
  }
}

at::Tensor counted(at::IntArrayRef sizes, c10::ScalarType dtype = at::kDouble) {
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble).view(sizes).to(dtype);
}

}  // namespace

TEST_CASE("reductions to nothing and of nothing", "[corner]") {
  const c10::List<int64_t> last({1}), first({0});
  for (const char* op : {"aten::amax", "aten::amin", "aten::sum.dim_IntList", "aten::mean.dim"})
    check_case({op, {at::zeros({0, 4}, at::kDouble), last, true}});
  check_case({"aten::amax", {at::zeros({0, 4}, at::kComplexDouble), last}});
  for (const double p : {-1., -1.5, 0., 2.}) {
    check_case({"aten::linalg_vector_norm", {at::zeros({0, 4}, at::kDouble), p, last}});
    check_case({"aten::norm.ScalarOpt_dim", {at::zeros({4, 0}, at::kDouble), p, first}});
    check_case({"aten::linalg_vector_norm", {at::full({}, 2., at::kDouble), p, first, true}});
  }
  check_case({"aten::pairwise_distance", {at::zeros({0, 4}, at::kDouble), at::zeros({0, 4}, at::kDouble), -1.}});
  const auto empty = lay_out(at::zeros({4, 0}, at::kDouble), test_meshes()[2], {Shard(0)});
  CHECK_THROWS_WITH(call_op("aten::linalg_vector_norm", {empty, -1., last}),
                    Catch::Contains("does not have an identity"));
}

TEST_CASE("binary cross entropy with a target of another shape", "[corner]") {
  const auto p = at::rand({2, 3}, at::kDouble), line = at::rand({2}, at::kDouble);
  check_case({"aten::binary_cross_entropy", {p, at::tensor(0.25, at::kDouble), kAbsent, 0}});
  check_case({"aten::binary_cross_entropy", {p, at::rand({3}, at::kDouble), kAbsent, 1}});
  check_case({"aten::binary_cross_entropy", {line, at::rand({1, 1}, at::kDouble), kAbsent, 0}});
  check_case({"aten::binary_cross_entropy", {line, at::rand({2, 1}, at::kDouble), kAbsent, 2}});
}

TEST_CASE("sums of powers accept the same arguments as ATen", "[corner]") {
  check_case({"aten::linalg__powsum", {counted({0, 3}, at::kInt), 2}});
  check_case({"aten::linalg__powsum", {counted({4, 3}), 3, c10::List<int64_t>({0})}});
  check_case({"aten::linalg__powsum", {counted({4, 3}, at::kFloat), 2, kAbsent, false, at::kDouble}});
  const auto z = at::complex(counted({4, 1}), counted({4, 1}));
  check_case({"aten::linalg__powsum", {z, 2, kAbsent, false, at::kDouble}});
}

TEST_CASE("writes by an empty index, and of other dtypes", "[corner]") {
  const auto index = at::tensor({0, 7}, at::kLong);
  check_case({"aten::index_add", {at::zeros({4, 0}, at::kDouble), 0, index, at::zeros({2, 0}, at::kDouble)}});
  check_case({"aten::index_copy",
              {at::zeros({4, 0}, at::kDouble), 0, at::tensor({0, 3}, at::kLong), at::zeros({2, 0}, at::kDouble)}});
  const auto mask = counted({4, 3}).gt(5);
  for (const char* op : {"aten::index_put", "aten::index_put_"}) {
    check_case({op, {counted({4, 3}), OptionalTensors({mask}), at::ones({1}, at::kBool)}});
    check_case({op, {counted({4, 3}, at::kInt), OptionalTensors({mask}), at::ones({}, at::kBool)}});
  }
  check_case(
      {"aten::index_put.out",
       {counted({4, 3}), OptionalTensors({mask}), at::ones({1}, at::kBool), false, at::zeros({4, 3}, at::kDouble)}});
}

TEST_CASE("numbers with integer tensors on a rank without elements", "[corner]") {
  check_case({"aten::addbmm",
              {counted({2, 2}, at::kInt), counted({2, 2, 3}, at::kInt), counted({2, 3, 2}, at::kInt), 1., 1.}});
  check_case({"aten::baddbmm",
              {counted({2, 2, 2}, at::kInt), counted({2, 2, 2}, at::kInt), counted({2, 2, 2}, at::kInt), 2.5, 1.}});
  check_case({"aten::addmm", {counted({2, 1}, at::kInt), counted({2, 2}, at::kInt), counted({2, 1}, at::kInt), 1., 1}});
  check_case({"aten::addmv", {counted({2}, at::kInt), counted({2, 2}, at::kInt), counted({2}, at::kInt), 3., 1.}});
  check_case({"aten::addr", {counted({4, 3}, at::kInt), counted({4}), counted({3}), 0.5, 0.25}});
  check_case({"aten::floor_divide.Scalar", {at::zeros({0, 4}, at::kBool), 0}});
}

TEST_CASE("addr with beta = 0 has the strides of its bias", "[corner]") {
  const auto bias = counted({3, 4}), column = counted({4}), row = counted({3});
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(bias, test_meshes()[2], {p}), v = lay_out(column, test_meshes()[2], {Replicate()}),
               w = lay_out(row, test_meshes()[2], {Replicate()});
    for (const double beta : {0., 1.}) {
      const auto product = [&](const at::Tensor& b, const at::Tensor& c, const at::Tensor& r) {
        return call_op("aten::addr", {b.t(), c, r, beta})[0];
      };
      const auto expected = product(bias, column, row);
      CHECK(product(x, v, w).strides() == expected.strides());
      CHECK(difference(product(x, v, w), expected) == std::nullopt);
      const auto of_float = product(x, v.to(at::kFloat), w.to(at::kFloat));
      CHECK(difference(of_float, product(bias, column.to(at::kFloat), row.to(at::kFloat))) == std::nullopt);
    }
  }
}

TEST_CASE("writes by an empty index give row-major results", "[corner]") {
  const auto full = counted({3, 2}), nothing = at::zeros({2, 0}, at::kDouble);
  const auto index = at::zeros({0}, at::kLong);
  const DeviceMesh& mesh = test_meshes()[2];
  const auto x = lay_out(full, mesh, {Shard(1)}), i = lay_out(index, mesh, {Replicate()}),
             none = lay_out(nothing, mesh, {Replicate()});
  for (const char* op : {"aten::index_add", "aten::index_copy"})
    CHECK(call_op(op, {x.t(), 1, i, none})[0].strides() == call_op(op, {full.t(), 1, index, nothing})[0].strides());
  CHECK(call_op("aten::index_fill.int_Scalar", {x.t(), 1, i, 2.})[0].strides() == full.t().strides());
}

TEST_CASE("as_strided of a copied view addresses only the copy's elements", "[corner]") {
  const auto x = lay_out(counted({4, 1}), test_meshes()[2], {Replicate()});
  const auto pairs = call_op("aten::view_as_complex", {x.as_strided({1, 3}, {3, 1}).reshape({-1}).unfold(0, 2, 3)})[0];
  CHECK_THROWS_WITH(pairs.as_strided({1, 2}, {4, 1}), Catch::Contains("reach beyond the tensor"));
}

TEST_CASE("zero and backward of elementwise losses have ATen's strides", "[corner]") {
  const auto full = counted({2, 3});
  const auto x = lay_out(full, test_meshes()[2], {Shard(1)});
  CHECK(call_op("aten::zero", {x.t()})[0].strides() == full.t().strides());
  for (const char* op : {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"}) {
    const auto gradient = [&](const at::Tensor& t) {
      std::vector<c10::IValue> args = {t.t(), t.t(), t.t() * 2, 1};
      if (std::string_view(op) != "aten::mse_loss_backward") args.emplace_back(0.5);
      return call_op(op, args)[0];
    };
    CHECK(gradient(x).strides() == gradient(full).strides());
    CHECK(difference(gradient(x), gradient(full)) == std::nullopt);
  }
}

TEST_CASE("roll keeps channels-last if both parts have it", "[corner]") {
  const auto full = counted({2, 3, 2, 4});
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(full, test_meshes()[2], {p});
    for (const int64_t shift : {1, 2}) {
      const auto rolled = [&](const at::Tensor& t) { return at::movedim(t, -1, 1).roll({shift, 1}, {0, 2}); };
      CHECK(rolled(x).strides() == rolled(full).strides());
      CHECK(difference(rolled(x), rolled(full)) == std::nullopt);
    }
  }
}

TEST_CASE("channel_shuffle in every layout", "[corner]") {
  for (const char* op : {"aten::native_channel_shuffle", "aten::channel_shuffle"}) {
    check_case({op, {counted({2, 6, 3}), 3}});
    check_case({op, {counted({4, 4, 2, 3}).contiguous(at::MemoryFormat::ChannelsLast), 2}});
  }
  check_case({"aten::native_channel_shuffle", {at::zeros({0, 4, 3}, at::kDouble), 2}});
  // The result is not a view.
  const auto x = lay_out(counted({1, 1, 1}), test_meshes()[2], {Replicate()});
  at::Tensor shuffled = call_op("aten::native_channel_shuffle", {x, 1})[0];
  shuffled.fill_(7);
  CHECK(full_tensor(x).item<double>() == 1);
}

TEST_CASE("view as another dtype for any strides of the parts", "[corner]") {
  const DeviceMesh& mesh = test_meshes()[2];
  const auto whole = counted({1, 4}, at::kFloat);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
    const auto see = [](const at::Tensor& t) { return t.expand({4, 4}).diagonal().view(at::kDouble); };
    CHECK(difference(see(lay_out(whole, mesh, {p})), see(whole)) == std::nullopt);
    const auto pairs = [](const at::Tensor& t) {
      return call_op("aten::view_as_complex", {t.expand({3, 4}).reshape({3, 2, 2})})[0];
    };
    CHECK(difference(pairs(lay_out(whole, mesh, {p})), pairs(whole)) == std::nullopt);
  }
}

TEST_CASE("view as a larger dtype with an empty part", "[corner]") {
  const auto whole = counted({1, 2});
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(whole, test_meshes()[1], {Partial(), p});
    for (const int64_t begin : {0, 2}) {
      const auto see = [&](const at::Tensor& t) { return t.slice(1, begin).view(at::kComplexDouble); };
      CHECK(difference(see(x), see(whole)).value_or("") == "");
    }
  }
}

TEST_CASE("operators without a rule get contiguous memory if the whole is contiguous", "[corner]") {
  const auto full = counted({2, 2});
  const auto turned = [](const at::Tensor& t) {
    return call_op("aten::pdist", {t.rot90(1, {1, 0}).view({2, 2}), 2.})[0];
  };
  CHECK(difference(turned(lay_out(full, test_meshes()[2], {Replicate()})), turned(full)) == std::nullopt);
}

TEST_CASE("redistribute returns memory of its own", "[corner]") {
  const DeviceMesh& mesh = test_meshes()[2];
  const auto full = counted({5});
  for (const Placement& to : {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
    const auto windows = lay_out(full, mesh, {Shard(0)}).unfold(0, 2, 1);  // overlapping
    const auto moved = redistribute(windows, {to});
    const auto expected = full.unfold(0, 2, 1).clone();
    if (moved.is_same(windows)) continue;
    CHECK(moved.strides() == expected.strides());
    CHECK(difference(moved.view({8}), expected.view({8})) == std::nullopt);
  }
}

TEST_CASE("slice_inverse returns to the base", "[corner]") {
  const DeviceMesh& mesh = test_meshes()[2];
  const auto full = counted({4, 3});
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
    const auto x = lay_out(full, mesh, {p});
    CHECK(difference(call_op("aten::slice_inverse", {x.slice(0, 1, 3), x, 0, 1, 3, 1})[0], full) == std::nullopt);
  }
  const auto x = lay_out(full, mesh, {Shard(1)});  // whose slice shares the memory of each part
  CHECK_THROWS_WITH(call_op("aten::slice_inverse", {x.slice(0, 1, 3), x, 0, 1, 3, 1}),
                    Catch::Contains("reach beyond the tensor"));
}

TEST_CASE("writing through the conjugate of a product", "[corner]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto a = at::complex(counted({2}), counted({2}) - 3), b = at::complex(counted({2}) * 0.5, counted({2}) + 1);
  const auto x = from_local({a, b}, mesh, {Partial(ReduceOp::kProduct)});
  const auto plain = a * b;
  x.conj().cos_();
  plain.conj().cos_();
  CHECK(difference(x, plain) == std::nullopt);
}

TEST_CASE("as_strided of the conjugate or negative of a copied view", "[corner]") {
  const DeviceMesh& mesh = test_meshes()[2];
  const auto full = at::complex(counted({4, 3}), counted({4, 3}) - 5);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
    const auto see = [](const at::Tensor& t) {
      const auto piece = t.slice(0, 1, 3);
      const auto conjugate = piece.conj(), negative = piece._neg_view();
      const auto twice = piece.conj().slice(1, 0, 2).conj();
      return at::cat({conjugate.as_strided({2, 2}, {3, 1}), negative.as_strided({2, 2}, {3, 1}, 1),
                      twice.as_strided({2, 2}, {1, 3})});
    };
    CHECK(difference(see(lay_out(full, mesh, {p})), see(full)).value_or("") == "");
    // The write reaches the base.
    const auto plain = full.clone(), x = lay_out(full, mesh, {p});
    for (const at::Tensor& t : {plain, x})
      t.slice(0, 1, 3).conj().as_strided({2, 2}, {3, 1}).mul_(c10::complex<double>(0, 2));
    CHECK(difference(x, plain) == std::nullopt);
  }
}

TEST_CASE("writing to the real and imaginary parts of a conjugate", "[corner]") {
  const auto full = at::complex(counted({4, 3}), counted({4, 3}) - 5);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(full, test_meshes()[2], {p}), plain = full.clone();
    for (const at::Tensor& t : {plain, x}) {
      const auto real = call_op("aten::real", {t.conj()})[0], imag = call_op("aten::imag", {t.conj()})[0];
      real.mul_(3);
      imag.add_(1);
    }
    CHECK(difference(x, plain) == std::nullopt);
  }
}

TEST_CASE("writing to the conjugate of real memory viewed as complex", "[corner]") {
  const auto full = counted({6}), value = at::complex(counted({1}) + 0.25, counted({1}) - 2).to(at::kComplexFloat);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
    const auto x = lay_out(full, test_meshes()[2], {p}), plain = full.clone();
    for (const at::Tensor& t : {plain, x}) {
      const auto moved = call_op("aten::_unsafe_view", {t, std::vector<int64_t>{3, 1, 2}})[0];
      moved.view(at::kComplexFloat).conj().copy_(value);
    }
    CHECK(difference(x, plain) == std::nullopt);
  }
}

TEST_CASE("resolve_conj copies conjugated tensors and returns others themselves", "[corner]") {
  const auto full = at::complex(counted({4, 3}), counted({4, 3}) - 5);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(full, test_meshes()[2], {p}), plain = full.clone();
    for (const at::Tensor& t : {plain, x}) {
      t.conj().resolve_conj().zero_();
      t._neg_view().resolve_neg().zero_();
      CHECK(t.resolve_conj().is_same(t));
    }
    CHECK(difference(x, plain) == std::nullopt);
  }
}

TEST_CASE("losses of one row on ranks without classes", "[corner]") {
  for (const int64_t reduction : {0, 1, 2}) {
    check_case({"aten::nll_loss_forward", {counted({1}), at::zeros({1}, at::kLong), kAbsent, reduction, -100}});
    check_case({"aten::nll_loss_forward", {counted({1}), at::zeros({}, at::kLong), kAbsent, reduction, -100}});
  }
}

TEST_CASE("losses over classes written to out=", "[corner]") {
  const auto rows = at::tensor({2, 0, 1, -100}, at::kLong), images = rows.remainder(3).view({2, 2, 1});
  for (const int64_t reduction : {1, 2}) {
    for (const int64_t elements : {1, 0}) {  // without elements they are resized
      const auto out = [&](c10::ScalarType dtype) {
        return elements == 0 ? at::zeros({0}, dtype) : at::zeros({}, dtype);
      };
      const auto loss = out(at::kDouble), total = out(at::kDouble);
      check_case({"aten::nll_loss_forward.output", {counted({3}), rows[0], kAbsent, reduction, -100, loss, total}});
      check_case(
          {"aten::nll_loss_forward.output", {counted({4, 3}), rows, counted({3}), reduction, -100, loss, total}});
      check_case(
          {"aten::nll_loss2d_forward.output", {counted({2, 3, 2, 1}), images, kAbsent, reduction, 1, loss, total}});
      check_case({"aten::nll_loss_forward.output",
                  {counted({4, 3}, at::kHalf), rows, kAbsent, reduction, -100, out(at::kHalf), out(at::kHalf)}});
    }
  }
}

TEST_CASE("results for replicated tensors have the strides of plain ones", "[corner]") {
  const auto full = counted({4, 3});
  const ReplicateUnsupported scope;
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const auto x = lay_out(full, test_meshes()[2], {p});
    const auto spectrum = [](const at::Tensor& t) { return call_op("aten::fft_fftn", {t.t()})[0]; };
    CHECK(spectrum(x).strides() == spectrum(full).strides());
    const auto scores = [](const at::Tensor& t) { return call_op("aten::_softmax", {t.t(), 0, false})[0]; };
    CHECK(scores(x).strides() == scores(full).strides());
  }
}

TEST_CASE("a conjugated tensor stays lazily conjugated when gathered", "[corner]") {
  const auto full = at::complex(counted({1, 3, 1}), counted({1, 3, 1}) - 2);
  const ReplicateUnsupported scope;
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(1)), Placement(Partial())}) {
    const auto x = lay_out(full, test_meshes()[2], {p});
    // ATen clones a conjugated tensor to dense memory before it calls the kernel, which depends on strides.
    const auto of_whole = [](const at::Tensor& t) { return call_op("aten::fft_hfft", {t.expand({4, 3, 2})})[0]; };
    CHECK(of_whole(x).strides() == of_whole(full).strides());
    const auto other = [](const at::Tensor& t) { return call_op("aten::fft_irfft", {t.conj().expand({4, 3, 2})})[0]; };
    CHECK(other(x).strides() == other(full).strides());
    CHECK(difference(other(x), other(full)) == std::nullopt);
  }
}

TEST_CASE("avg of a complex tensor averages each part", "[corner]") {
  const auto one = [](double real, double imag) {
    return at::complex(at::tensor({real}, at::kDouble), at::tensor({imag}, at::kDouble));
  };
  const DeviceMesh mesh(World::local(2), {2});
  const auto average = [&](double real, double imag) {
    const auto whole = full_tensor(from_local({one(real, imag), one(1, 3)}, mesh, {Partial(ReduceOp::kAvg)}));
    return whole.item<c10::complex<double>>();
  };
  CHECK(average(NAN, 1).imag() == 2);
  CHECK(average(INFINITY, 1) == c10::complex<double>(INFINITY, 2));
  CHECK(average(3, INFINITY) == c10::complex<double>(2, INFINITY));
}

TEST_CASE("vander with no columns returns a new tensor", "[corner]") {
  const auto x = lay_out(counted({3}), test_meshes()[2], {Replicate()}).requires_grad_();
  const auto pieces = call_op("aten::split.Tensor", {x, 3, 0});
  const auto powers = call_op("aten::vander", {x, 0, true})[0];
  powers.div_(2);
  REQUIRE_NOTHROW(pieces[0].sum().backward());
}

TEST_CASE("vander with one column does not depend on its input's gradient", "[corner]") {
  // A view of a tensor that was written to has no gradient, and fails when one is requested.
  for (const Placement& placement : {Placement(Replicate()), Placement(Shard(1))}) {
    const auto x = lay_out(counted({1, 3}), test_meshes()[2], {placement});
    const auto pieces = call_op("aten::unbind.int", {x, 1});
    x.copy_(lay_out(counted({1, 3}), test_meshes()[2], {Replicate()}).requires_grad_());
    REQUIRE_THROWS(pieces[2].clone());
    CHECK(full_tensor(call_op("aten::vander", {pieces[2], 1, false})[0]).equal(at::ones({1, 1}, at::kDouble)));
  }
}

TEST_CASE("max_pool1d has the strides of plain ATen, with and without gradient", "[corner]") {
  for (const bool wants_gradient : {false, true}) {
    const auto full = counted({1, 4, 2}).requires_grad_(wants_gradient);
    const auto x = lay_out(full.detach(), test_meshes()[0], {Replicate()}).requires_grad_(wants_gradient);
    const auto pooled = [](const at::Tensor& t) {
      const c10::List<int64_t> two({2}), none, zero({0});
      return call_op("aten::max_pool1d", {t.movedim(1, 2), two, none, zero, two, true})[0];
    };
    CHECK(pooled(x).strides() == pooled(full).strides());
    CHECK(full_tensor(pooled(x)).equal(pooled(full)));
  }
}

TEST_CASE("mvlgamma has the strides of the sum it is composed of", "[corner]") {
  const auto full = counted({5}) + 2;
  const auto x = lay_out(full, test_meshes()[0], {Replicate()});
  for (const at::Tensor& t : {full, x}) {
    const auto overlapping = t.as_strided({3, 2}, {1, 2});
    CHECK(call_op("aten::mvlgamma", {overlapping, 1})[0].strides() == at::IntArrayRef({2, 1}));
  }
}

TEST_CASE("gradients reach a leaf used only by as_strided", "[corner]") {
  const auto full = counted({2, 2});
  const auto x = lay_out(full, test_meshes()[2], {Replicate()}).requires_grad_(), plain = full.clone().requires_grad_();
  for (const at::Tensor& t : {plain, x})
    call_op("aten::matrix_exp", {t.as_strided({2, 2}, {1, 2}) * 0.1})[0].sum().backward();
  REQUIRE(is_dtensor(x.grad()));
  CHECK(difference(x.grad(), plain.grad()) == std::nullopt);
  const auto y = lay_out(full * 0.1, test_meshes()[2], {Replicate()}).requires_grad_();
  const auto gradient =
      torch::autograd::grad({call_op("aten::matrix_exp", {y.as_strided({2, 2}, {1, 2})})[0].sum()}, {y})[0];
  CHECK(is_dtensor(gradient));
}

TEST_CASE("sparse gradients are rejected by name", "[corner]") {
  const DeviceMesh& mesh = test_meshes()[2];
  const auto table = lay_out(counted({6, 2}), mesh, {Shard(0)}).requires_grad_();
  const auto rows = lay_out(at::tensor({0, 4, 4}, at::kLong), mesh, {Replicate()});
  const auto y = call_op("aten::embedding", {table, rows, -1, false, true})[0];
  CHECK_THROWS_WITH(y.sum().backward(),
                    Catch::Contains("aten::embedding_sparse_backward: gives a tensor of layout Sparse"));
  const auto z = call_op("aten::gather", {table, 1, lay_out(at::zeros({6, 1}, at::kLong), mesh, {Shard(0)}), true})[0];
  CHECK_THROWS_WITH(z.sum().backward(), Catch::Contains("sparse_grad = false"));
}

}  // namespace dtensor::testing
