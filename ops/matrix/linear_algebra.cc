// Decompositions, inverses, systems of equations and functions of matrices: every matrix is whole; batches may be
// split, and so may the right hand sides of one system.
#include <ATen/ops/_linalg_check_errors.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/plain_numbers.h"
#include "plan/tensor_meta.h"

namespace dtensor::internal {
namespace {

const CoreDimsOp kDecompositions[] = {
    {"aten::_linalg_svd", "...MN->...AB,...K,...CD"},
    {"aten::_linalg_eigh", "...MN->...K,...AB"},
    {"aten::linalg_eig", "...MN->...M,...MN"},
    {"aten::_linalg_eigvals", "...MN->...M"},
    {"aten::linalg_qr", "...MN->...AB,...CD"},
    {"aten::geqrf", "...MN->...MN,...K"},
    {"aten::linalg_householder_product", "...MN,...K->...MN"},
    {"aten::linalg_cholesky_ex", "...MN->...MN,..."},
    {"aten::cholesky", "K->K|...MN->...MN"},
    {"aten::linalg_lu", "...MN->...AB,...CD,...EF"},
    {"aten::linalg_lu_factor_ex", "...MN->...MN,...K,..."},
    {"aten::lu_unpack", "...MN,...K->...AB,...CD,...EF"},
    {"aten::linalg_ldl_factor_ex", "...MN->...MN,...M,..."},
    {"aten::_linalg_det", "...MN->...,...MN,...K"},
    {"aten::_linalg_slogdet", "...MN->...,...,...MN,...K"},
    {"aten::linalg_inv_ex", "...MN->...MN,..."},
    {"aten::cholesky_inverse", "...MN->...MN"},
    {"aten::linalg_pinv.atol_rtol_tensor", "...MN,...,...->...NM"},
    {"aten::linalg_matrix_exp", "...MN->...MN"},
    {"aten::linalg_matrix_sqrth", "...MN->...MN"},
    {"aten::linalg_polar", "...MN->...MN,...AB"},
};

// Whether the right hand side of a system is a vector or a batch of vectors, decided as in ATen.
bool has_vectors_as_sides(const OpCall& call) {
  const Shape &a = call.inputs[0]->sizes(), &b = call.inputs[1]->sizes();
  return b.size() == 1 || (a.size() == b.size() + 1 && std::equal(b.begin(), b.end(), a.begin()));
}

std::string solve_equation(const OpCall& call) {
  if (has_vectors_as_sides(call)) return "...MN,...K->...K,...MN,...M,...";
  return call.get_bool("left") ? "...MN,...Pc->...Pc,...MN,...M,..." : "...MN,...cQ->...cQ,...MN,...M,...";
}
// "gels" assumes full rank, and so does not return it.
std::string least_squares_equation(const OpCall& call) {
  const auto& driver = call.arg("driver");
  const bool ranked =
      driver.isNone() ? call.mesh.world().device_type() == c10::DeviceType::CPU : driver.toStringRef() != "gels";
  if (has_vectors_as_sides(call)) return ranked ? "...MN,...M->...N,...R,...,...S" : "...MN,...M->...N,...R,...T,...S";
  return ranked ? "...MN,...Mc->...Nc,...c,...,...S" : "...MN,...Mc->...Nc,...c,...T,...S";
}

// Right hand sides are columns, or rows if the unknown is on the left.
std::string factored_equation(const OpCall& call) {
  return call.get_bool("left") ? "...MN,...K,...Pc->...Pc" : "...MN,...K,...cQ->...cQ";
}
std::string triangular_equation(const OpCall& call) {
  return call.get_bool("left") ? "...MM,...Mc->...Mc" : "...MM,...cM->...cM";
}

const CoreDimsOp kSystems[] = {
    {.op = "aten::_linalg_solve_ex", .equation = "", .choose = solve_equation, .aside = 'c'},
    {.op = "aten::linalg_lstsq", .equation = "", .choose = least_squares_equation, .aside = 'c'},
    {.op = "aten::linalg_lu_solve", .equation = "", .linear = "B", .choose = factored_equation},
    {"aten::linalg_ldl_solve", "...MN,...K,...Pc->...Pc", "B"},
    {.op = "aten::linalg_solve_triangular", .equation = "", .linear = "B", .choose = triangular_equation},
    {.op = "aten::triangular_solve", .equation = "...Pc,...MN->...Pc,...MN", .aside = 'c'},
    {"aten::cholesky_solve", "...Mc,...MM->...Mc", "self"},
    {"aten::_cholesky_solve_helper", "...Pc,...MN->...Pc", "self"},
    {.op = "aten::ormqr", .equation = "", .linear = "input3", .choose = factored_equation},
};

// ------------------------------------------------------------ work

// A rank's part of a batch of matrices [m, n], and of the right hand sides of their systems.
struct Matrices {
  double batch = 0, m = 0, n = 0;
  double sides = 0;  // right hand sides of one matrix
  double shorter() const { return std::min(m, n); }
  double longer() const { return std::max(m, n); }
};

double cube(double n) { return n * n * n; }

// Floating-point operations of LAPACK's algorithms, to the highest order (Golub and Van Loan, Matrix Computations). The
// number of iterations depends on the values; a typical one is used.
double cholesky(const Matrices& a) { return cube(a.n) / 3; }
double from_cholesky(const Matrices& a) { return 2 * cube(a.n) / 3; }
double lu(const Matrices& a) { return a.shorter() * a.shorter() * (a.longer() - a.shorter() / 3); }
double inverse(const Matrices& a) { return 2 * cube(a.n); }
double householder(const Matrices& a) { return 2 * a.shorter() * a.shorter() * (a.longer() - a.shorter() / 3); }
double householder_and_q(const Matrices& a) { return 2 * householder(a); }
double symmetric_eigenvalues(const Matrices& a) { return 4 * cube(a.n) / 3; }
double symmetric_eigenvectors(const Matrices& a) { return 9 * cube(a.n); }
double eigenvalues(const Matrices& a) { return 10 * cube(a.n); }
double eigenvectors(const Matrices& a) { return 25 * cube(a.n); }
double singular_values(const Matrices& a) { return 2 * a.longer() * a.shorter() * a.shorter() + 2 * cube(a.shorter()); }
double singular_vectors(const Matrices& a) {
  return 6 * a.longer() * a.shorter() * a.shorter() + 20 * cube(a.shorter());
}
double pseudo_inverse(const Matrices& a) { return singular_vectors(a) + 2 * a.m * a.n * a.shorter(); }
double symmetric_root(const Matrices& a) { return symmetric_eigenvectors(a) + 2 * cube(a.n); }
double polar(const Matrices& a) { return singular_vectors(a) + 2 * a.m * a.n * a.shorter() + 2 * cube(a.n); }
double exponential(const Matrices& a) { return 8 * 2 * cube(a.n); }  // eight products
double one_triangle(const Matrices& a) { return a.n * a.n * a.sides; }
double two_triangles(const Matrices& a) { return 2 * a.n * a.n * a.sides; }
double lu_and_two_triangles(const Matrices& a) { return lu(a) + two_triangles(a); }
double least_squares(const Matrices& a) { return householder(a) + 4 * a.m * a.n * a.sides; }
double reflections(const Matrices& a) { return 2 * a.n * (2 * a.m - a.n) * a.sides; }

using WorkOfOne = double (*)(const Matrices&);

struct WorkOfOp {
  const char* op;
  WorkOfOne work;
  // The call requests only some of the results, which costs `less`.
  bool (*asks_for_less)(const OpCall& call) = nullptr;
  WorkOfOne less = nullptr;
  // Indices among the tensor arguments: the matrices, and the right hand sides.
  int matrices = 0, sides = -1;
};

const WorkOfOp kWork[] = {
    {"aten::_linalg_svd", singular_vectors, [](const OpCall& c) { return !c.get_bool("compute_uv"); }, singular_values},
    {"aten::_linalg_eigh", symmetric_eigenvectors, [](const OpCall& c) { return !c.get_bool("compute_v"); },
     symmetric_eigenvalues},
    {"aten::linalg_eig", eigenvectors},
    {"aten::_linalg_eigvals", eigenvalues},
    {"aten::linalg_qr", householder_and_q, [](const OpCall& c) { return c.arg("mode").toStringRef() == "r"; },
     householder},
    {"aten::geqrf", householder},
    {"aten::linalg_householder_product", householder},
    {"aten::linalg_cholesky_ex", cholesky},
    {"aten::cholesky", cholesky},
    {"aten::linalg_lu", lu},
    {"aten::linalg_lu_factor_ex", lu},
    {"aten::linalg_ldl_factor_ex", cholesky},
    {"aten::_linalg_det", lu},
    {"aten::_linalg_slogdet", lu},
    {"aten::linalg_inv_ex", inverse},
    {"aten::cholesky_inverse", from_cholesky},
    {"aten::linalg_pinv.atol_rtol_tensor", pseudo_inverse},
    {"aten::linalg_matrix_exp", exponential},
    {"aten::linalg_matrix_sqrth", symmetric_root},
    {"aten::linalg_polar", polar},
    {.op = "aten::_linalg_solve_ex", .work = lu_and_two_triangles, .sides = 1},
    {.op = "aten::linalg_lstsq", .work = least_squares, .sides = 1},
    {.op = "aten::linalg_lu_solve", .work = two_triangles, .sides = 2},
    {.op = "aten::linalg_ldl_solve", .work = two_triangles, .sides = 2},
    {.op = "aten::linalg_solve_triangular", .work = one_triangle, .sides = 1},
    {.op = "aten::triangular_solve", .work = one_triangle, .matrices = 1, .sides = 0},
    {.op = "aten::cholesky_solve", .work = two_triangles, .matrices = 1, .sides = 0},
    {.op = "aten::_cholesky_solve_helper", .work = two_triangles, .matrices = 1, .sides = 0},
    {.op = "aten::ormqr", .work = reflections, .sides = 2},
};

// The number of matrices in the broadcast batch dims of two tensors.
double batch_of(const Shape& a, size_t core_dims_of_a, const Shape& b, size_t core_dims_of_b) {
  const size_t dims_of_a = a.size() - core_dims_of_a, dims_of_b = b.size() - core_dims_of_b;
  double batch = 1;
  for (size_t d = 1; d <= std::max(dims_of_a, dims_of_b); ++d) {
    const int64_t of_a = d <= dims_of_a ? a[dims_of_a - d] : 1, of_b = d <= dims_of_b ? b[dims_of_b - d] : 1;
    batch *= static_cast<double>(of_a == 1 ? of_b : of_a);
  }
  return batch;
}

Flops work_of(const WorkOfOp& op, const OpCall& call) {
  const bool less = op.asks_for_less != nullptr && op.asks_for_less(call);
  const bool vectors = op.sides == 1 && has_vectors_as_sides(call);
  return [op, vectors, work = less ? op.less : op.work](const std::vector<Shape>& inputs) {
    const Shape& a = inputs[op.matrices];
    if (a.size() < 2) return 0.0;
    Matrices part;
    part.m = static_cast<double>(a[a.size() - 2]);
    part.n = static_cast<double>(a.back());
    const Shape none;
    const Shape& b = op.sides >= 0 ? inputs[op.sides] : none;
    const size_t core_dims_of_b = b.empty() ? 0 : vectors ? 1 : 2;
    part.batch = batch_of(a, 2, b, core_dims_of_b);
    double of_sides = 1;
    for (size_t d = b.size() - core_dims_of_b; d < b.size(); ++d) of_sides *= static_cast<double>(b[d]);
    part.sides = op.sides < 0 || part.m == 0 ? 0 : of_sides / std::max(part.m, 1.0);
    return part.batch * work(part);
  };
}

// For "aten::linalg_inv_ex" and the like: FLOP for the matrices of a rank. Empty for other operators.
std::function<Flops(const OpCall&)> matrix_work(const std::string& op) {
  const auto* const found =
      std::find_if(std::begin(kWork), std::end(kWork), [&](const WorkOfOp& w) { return w.op == op; });
  if (found == std::end(kWork)) return {};
  return [found](const OpCall& call) { return work_of(*found, call); };
}

// ------------------------------------------------------------ what has no line in a table

// Bilinear in vectors of three.
CoreDims cross_dims(const OpCall& call) {
  CoreDims dims{pointwise(call), {}};
  dims.rule.need_replication.push_back(
      static_cast<int>(wrap_dim(call.get_int("dim"), static_cast<int64_t>(dims.rule.outputs[0].size()))));
  dims.rule.terms = {{0, 1}};
  return dims;
}

// The results where the libraries of GPUs compute: linalg_lstsq() has another driver by default, which gives residuals,
// and the second singular vectors are in rows.
OutputMetas metas_on_gpus(OpCall call, const std::function<OutputMetas(const OpCall&)>& metas) {
  const std::string& name = call.schema().name();
  if (const int driver = call.arg_index("driver"); name == "aten::linalg_lstsq" && call.args[driver].isNone())
    call.args[driver] = "gels";
  OutputMetas result = metas(call);
  if (name == "aten::_linalg_svd" && result.tensors[2])
    result.tensors[2]->strides = row_major_strides(result.tensors[2]->sizes);
  return result;
}

// Reports which matrix of a batch failed, on all ranks alike, so that a program may catch the error: whether any matrix
// failed is one number, which is reduced if the batch is sharded. Only then are the codes gathered.
void check_errors(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Arguments args(op, stack);
  const at::Tensor info = args.tensor("info");
  if (info.numel() == 0) return torch::jit::drop(stack, op.schema().arguments().size());
  const at::Tensor worst = at::amax(info.abs());
  const at::Tensor code = redistribute_below_autograd(
      worst, Placements(spec_of(worst)->mesh().ndim(), Replicate()),
      {c10::toString(op.operator_name()), "info", current_scope().module_path, /*implicit=*/true});
  const bool has_data = !meta_without_sync(info).locals.empty();
  if (!has_data || plain_numbers(code, op, "info").item<int64_t>() == 0)
    return torch::jit::drop(stack, op.schema().arguments().size());
  args.set("info", plain_numbers(info, op, "info"));
  LocalGuard guard;
  op.callBoxed(stack);
}

// The forms that check for errors: they check after all ranks have computed, so that no rank waits for another. Their
// last result is the error code.
void checked(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  Arguments args(op, stack);
  const bool checks = args["check_errors"].toBool();
  const bool is_matrix = torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor().dim() == 2;
  args.set("check_errors", false);
  dispatch_by_rule(op, stack);
  const std::string name = op.schema().name();
  if (checks)
    at::_linalg_check_errors(stack.back().toTensor(), "torch.linalg." + name.substr(name.find("linalg_") + 7),
                             is_matrix);
}

}  // namespace

const RuleFamily linear_algebra_rules("linear_algebra", [](RuleRegistry& registry) {
  const auto add = [&](CoreDimsOp op) {
    op.any_size = true;
    OpRule rule = core_dims_rule(op);
    rule.flops = matrix_work(op.op);
    rule.metas = [metas = std::move(rule.metas)](const OpCall& call) {
      return call.mesh.world().device_type() == c10::DeviceType::CUDA ? metas_on_gpus(call, metas) : metas(call);
    };
    registry.add(op.op, rule);
  };
  for (const CoreDimsOp& op : kDecompositions) add(op);
  for (const CoreDimsOp& op : kSystems) add(op);
  registry.add("aten::linalg_cross", core_dims_rule(cross_dims, {}));
  registry.add_handler("aten::_linalg_check_errors", check_errors);
  for (const char* op : {"aten::linalg_inv_ex", "aten::linalg_cholesky_ex", "aten::linalg_lu_factor_ex",
                         "aten::linalg_ldl_factor_ex", "aten::_linalg_solve_ex"})
    registry.add_handler(op, checked);
});

}  // namespace dtensor::internal
