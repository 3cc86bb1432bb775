// QR and singular values of tall matrices whose rows are split over ranks: every rank decomposes its rows, and only the
// triangles are sent (Demmel, Grigori, Hoemmen, Langou, Communication-optimal Parallel and Sequential QR and LU
// Factorizations, 2012). Signs are those of one Householder QR of the whole matrix, found from its first rows (Ballard
// et al., Reconstructing Householder Vectors from Tall-Skinny QR, 2014), so that all layouts give the same.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_linalg_svd.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/real.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/support/arguments.h"
#include "plan/largest_part.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// A rank's summary of its rows: the triangle of their QR, then the part of Q in the first n rows of the whole.
struct SummaryRows {
  int64_t triangle = 0, top = 0;  // rows
};

SummaryRows summary_rows(const LocalLayout& part, int64_t n) {
  const IndexRanges& rows = part.dims[part.dims.size() - 2];
  if (part.empty()) return {};
  return {std::min(rows[0].size, n), std::clamp<int64_t>(n - rows[0].begin, 0, rows[0].size)};
}

at::Tensor with_rows(const at::Tensor& t, int64_t rows) { return at::constant_pad_nd(t, {0, 0, 0, rows - t.size(-2)}); }

// The signs (a diagonal of +1 and -1) by which R's rows and Q's columns differ from the result of Householder
// reflections of the whole matrix, where `top` are the first n rows of Q: every reflection flips the sign.
at::Tensor householder_signs(at::Tensor top) {
  top = top.clone();
  const int64_t n = top.size(-1);
  std::vector<at::Tensor> signs;
  for (int64_t i = 0; i < n; ++i) {
    const at::Tensor pivot = top.select(-2, i).select(-1, i);
    const at::Tensor sign = at::where(at::real(pivot) >= 0, -1.0, 1.0).to(top.scalar_type());
    signs.push_back(sign);
    if (i + 1 == n) break;
    const at::Tensor below = top.narrow(-2, i + 1, n - i - 1);
    const at::Tensor column = below.narrow(-1, i, 1) / (pivot - sign).unsqueeze(-1).unsqueeze(-1);
    const at::Tensor row = top.narrow(-2, i, 1).narrow(-1, i + 1, n - i - 1);
    below.narrow(-1, i + 1, n - i - 1).sub_(at::matmul(column, row));
  }
  return at::stack(signs, -1);
}

// In LAPACK's memory order.
at::Tensor column_major(const at::Tensor& t) { return t.mT().contiguous().mT(); }

at::Tensor column_major_of(const DeviceMesh& mesh, const Placements& placements, const Shape& sizes,
                           c10::ScalarType dtype, RankTensors locals) {
  Shape strides(sizes.size(), 1);
  const size_t m = sizes.size() - 2, n = sizes.size() - 1;
  strides[n] = std::max<int64_t>(sizes[m], 1);
  int64_t stride = strides[n] * std::max<int64_t>(sizes[n], 1);
  for (size_t d = m; d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
  return make_dtensor(Spec::get(mesh, placements, TensorMeta{sizes, strides, dtype}), std::move(locals));
}

double householder_and_q(int64_t m, int64_t n) {
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n);
  return 4 * columns * columns * (rows - columns / 3);
}

// Each rank decomposes its rows and all triangles, and multiplies one Q by its part of the other.
void report_work(const c10::OperatorHandle& op, const Spec& spec, int64_t ranks) {
  const Shape part = largest_part(spec.sizes(), spec.mesh().shape(), spec.placements());
  const int64_t m = spec.sizes()[part.size() - 2], n = part.back(), own = part[part.size() - 2];
  const double products = 2. * static_cast<double>(own) * static_cast<double>(n) * static_cast<double>(n);
  const double of_rank =
      householder_and_q(std::max(own, n), n) + householder_and_q(std::max(ranks * std::min(own, n), n), n) + products;
  double own_batch = 1, batch = 1;
  for (size_t d = 0; d + 2 < part.size(); ++d) {
    own_batch *= static_cast<double>(part[d]);
    batch *= static_cast<double>(spec.sizes()[d]);
  }
  report_flops(c10::toString(op.operator_name()), current_scope().module_path, spec, own_batch * of_rank,
               batch * householder_and_q(m, n));
}

struct QR {
  at::Tensor q, r;
};

// R, and a rank's rows of Q, from the summaries of all parts. Every rank decomposes the triangles, stacked.
// `own_q`: Q of the rank's own rows, which are those of `part`; undefined: it has none, and gets an undefined Q.
QR qr_of_triangles(const std::vector<LocalLayout>& parts, const at::Tensor& summaries, const LocalLayout& part,
                   const at::Tensor& own_q, int64_t n) {
  const size_t rows = part.dims.size() - 2;
  std::vector<at::Tensor> triangles, tops;
  std::vector<std::pair<int64_t, SummaryRows>> places;  // of each part in the triangles
  int64_t place = 0, own_place = 0;
  for (size_t c = 0; c < parts.size();) {
    const SummaryRows it = summary_rows(parts[c], n);
    const auto at = static_cast<int64_t>(c);
    triangles.push_back(summaries.narrow(-2, at, it.triangle));
    tops.push_back(summaries.narrow(-2, at + it.triangle, it.top).narrow(-1, 0, it.triangle));
    places.emplace_back(place, it);
    if (!part.empty() && parts[c].dims[rows][0].begin == part.dims[rows][0].begin) own_place = place;
    place += it.triangle;
    c += static_cast<size_t>(it.triangle + it.top);
  }
  auto [inner, triangle] = at::linalg_qr(at::cat(triangles, -2));
  std::vector<at::Tensor> first_rows;
  for (size_t p = 0; p < places.size(); ++p) {
    if (places[p].second.top > 0)
      first_rows.push_back(at::matmul(tops[p], inner.narrow(-2, places[p].first, places[p].second.triangle)));
  }
  const at::Tensor signs = householder_signs(at::cat(first_rows, -2));
  QR result{{}, column_major(triangle * signs.unsqueeze(-1))};
  if (own_q.defined()) {
    const at::Tensor outer = inner.narrow(-2, own_place, own_q.size(-1)) * signs.unsqueeze(-2);
    result.q = column_major(at::matmul(own_q, outer));
  }
  return result;
}

// nullopt: the rows are not split, or it does not pay.
std::optional<QR> tall_qr(const c10::OperatorHandle& op, const at::Tensor& self) {
  const int64_t rows = self.dim() - 2;
  if (rows < 0 || self.numel() == 0 || !is_split(self, {rows})) return std::nullopt;
  const int64_t m = self.size(-2), n = self.size(-1), batch = self.numel() / (m * n);
  const Spec& spec = *spec_of(self);
  Placements whole = spec.placements();  // of R
  int64_t ranks = 1;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (!whole[d].is_sharded()) continue;
    if (whole[d].dim() == rows + 1 || whole[d] != Shard(whole[d].dim())) return std::nullopt;  // split, or in blocks
    if (whole[d].dim() == rows) ranks *= spec.mesh().size(static_cast<int64_t>(d)), whole[d] = Replicate();
  }
  SummaryRequest request;
  request.dims = {rows};
  request.dtypes = {self.scalar_type()};
  request.count = [n](const LocalLayout& part) { return summary_rows(part, n).triangle + summary_rows(part, n).top; };
  // The alternative: whole matrices of a batch per rank, which moves each rank's part once.
  if (m < 2 * n || num_columns(self, request) * (batch >= ranks ? ranks : 1) >= m) return std::nullopt;

  std::map<const c10::TensorImpl*, at::Tensor> own;  // Q of the rows, for each rank of this process
  request.summarize = [&](const at::Tensor& local, const LocalLayout& part, int64_t width) {
    auto [q, r] = at::linalg_qr(local);
    own.emplace(local.unsafeGetTensorImpl(), q);
    const at::Tensor top = q.narrow(-2, 0, summary_rows(part, n).top);
    const at::Tensor padded_top = at::constant_pad_nd(top, {0, n - top.size(-1)});
    return std::vector<at::Tensor>{with_rows(at::cat({r, padded_top}, -2), width)};
  };
  const Summaries all = gather_summaries(self, request, call_cause(op, "A", self));

  const RankTensors& summaries = meta_for_read(all.tensors[0]).locals;
  const RankTensors& locals = meta_for_read(self).locals;
  RankTensors q(locals.size()), r(locals.size());
  for (size_t i = 0; i < locals.size(); ++i) {
    LocalGuard guard;
    const auto it = own.find(locals[i].unsafeGetTensorImpl());
    const QR found = qr_of_triangles(all.parts, summaries[i], spec.local_layout(static_cast<int64_t>(i)),
                                     it == own.end() ? at::Tensor() : it->second, n);
    q[i] = found.q.defined() ? found.q : at::empty_like(locals[i]);
    r[i] = found.r;
  }
  report_work(op, spec, ranks);
  Shape square = spec.sizes();
  square[static_cast<size_t>(rows)] = n;
  return QR{column_major_of(spec.mesh(), spec.placements(), spec.sizes(), self.scalar_type(), std::move(q)),
            column_major_of(spec.mesh(), whole, square, self.scalar_type(), std::move(r))};
}

// linalg_qr(A, mode).
void linalg_qr(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  std::optional<QR> found;
  if (args["mode"].toStringRef() == "reduced") found = tall_qr(op, args.tensor("A"));
  if (!found) return dispatch_by_rule(op, stack);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(found->q));
  stack.emplace_back(std::move(found->r));
}

// _linalg_svd(A, full_matrices, compute_uv, driver): the SVD of R, with U multiplied by Q.
void linalg_svd(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const bool compute_uv = args["compute_uv"].toBool();
  std::optional<QR> qr;
  if (!compute_uv || !args["full_matrices"].toBool()) qr = tall_qr(op, args.tensor("A"));
  if (!qr) return dispatch_by_rule(op, stack);
  auto [u, s, vh] =
      at::_linalg_svd(qr->r, /*full_matrices=*/false, compute_uv, args["driver"].toOptional<c10::string_view>());
  if (compute_uv) u = column_major(at::matmul(qr->q, u));
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(u));
  stack.emplace_back(std::move(s));
  stack.emplace_back(std::move(vh));
}

}  // namespace

const RuleFamily tall_matrix_handlers("tall_matrices", [](RuleRegistry& registry) {
  registry.add_handler("aten::linalg_qr", linalg_qr);
  registry.add_handler("aten::_linalg_svd", linalg_svd);
});

}  // namespace dtensor::internal
