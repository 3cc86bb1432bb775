#include "ops/embedding/composite_embedding_bag.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_embedding_bag.h>
#include <ATen/ops/_embedding_bag_dense_backward.h>
#include <ATen/ops/_embedding_bag_per_sample_weights_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "ops/indexing/local_index.h"

namespace dtensor::internal {
namespace {

// The ids of own rows, which are not padding: their positions, and their values counted from the first own row.
struct OwnIds {
  at::Tensor places, ids;
};

OwnIds own_ids(const at::Tensor& ids, const TableRows& rows) {
  check_range(ids, 0, rows.num_rows, 0);
  const at::Tensor own =
      ids.ge(rows.offset).logical_and_(ids.lt(rows.offset + rows.size)).logical_and_(ids.ne(rows.padding_idx));
  const at::Tensor places = own.nonzero().squeeze(1);
  return {places, ids.index_select(0, places).sub_(rows.offset)};
}

at::Tensor at_places(const at::Tensor& t, const at::Tensor& places) {
  return t.defined() ? t.index_select(0, places) : t;
}

std::optional<at::Tensor> if_defined(const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; }

}  // namespace

at::Tensor bags_of(const at::Tensor& offsets, int64_t begin, int64_t count) {
  const at::Tensor places = at::arange(begin, begin + count, offsets.options());
  return at::searchsorted(offsets.contiguous(), places, /*out_int32=*/offsets.scalar_type() == at::kInt, /*right=*/true)
      .sub_(1)
      .clamp_min_(0);
}

BagResults masked_embedding_bag(const at::Tensor& part, const Bags& bags, const TableRows& rows) {
  const int64_t size = bags.size(), features = part.size(1);
  const auto index = c10::promoteTypes(bags.ids.scalar_type(), bags.offsets.scalar_type());
  const auto options = bags.ids.options().dtype(index);
  const OwnIds own = own_ids(bags.ids, rows);
  const bool is_max = bags.mode == kBagMax;
  BagResults r;
  r.bag_of_id = bags_of(bags.offsets.narrow(0, 0, size), 0, bags.ids.size(0)).to(index);
  r.bag_size = at::zeros({size}, options).index_add_(0, r.bag_of_id, bags.ids.ne(rows.padding_idx).to(index));
  if (own.ids.numel() == 0 || features == 0) {
    r.result = part.new_full({size, features}, is_max ? -std::numeric_limits<double>::infinity() : 0);
    r.max_ids = is_max ? at::full({size, features}, -1, options) : at::zeros({0}, options);
    return r;
  }
  // A bag begins after the own ids that precede it.
  const at::Tensor offsets = at::searchsorted(own.places, bags.offsets.to(at::kLong), /*out_int32=*/false).to(index);
  std::tie(r.result, std::ignore, std::ignore, r.max_ids) =
      at::_embedding_bag(part, own.ids.to(index), offsets, /*scale_grad_by_freq=*/false, is_max ? kBagMax : kBagSum,
                         /*sparse=*/false, if_defined(at_places(bags.weights, own.places)), bags.include_last_offset);
  if (bags.mode == kBagMean) r.result.div_(r.bag_size.clamp_min(1).unsqueeze(1).to(part.scalar_type()));
  if (is_max) {
    const at::Tensor own_bags = r.bag_of_id.index_select(0, own.places);
    const at::Tensor none = at::zeros({size}, options).index_fill_(0, own_bags.to(at::kLong), 1).eq(0).unsqueeze(1);
    r.result.masked_fill_(none, -std::numeric_limits<double>::infinity());
    r.max_ids = r.max_ids.to(index).add(rows.offset).masked_fill_(none, -1);
  } else {
    r.max_ids = at::zeros({0}, options);
  }
  return r;
}

at::Tensor masked_embedding_bag_backward(const at::Tensor& grad, const BagsOfIds& bags, const TableRows& rows) {
  const at::Tensor nothing = grad.new_zeros({rows.size, grad.size(1)});
  const OwnIds own = own_ids(bags.ids, rows);
  if (own.ids.numel() == 0 || grad.numel() == 0) return nothing;
  if (bags.mode == kBagMax) {
    const at::Tensor elsewhere = bags.max_ids.lt(rows.offset).logical_or_(bags.max_ids.ge(rows.offset + rows.size));
    const at::Tensor own_max = bags.max_ids.to(at::kLong).sub(rows.offset).masked_fill_(elsewhere, 0);
    return nothing.scatter_add_(0, own_max, grad.masked_fill(elsewhere, 0));
  }
  const auto index = c10::promoteTypes(bags.ids.scalar_type(), bags.bag_of_id.scalar_type());
  const at::Tensor sizes = bags.bag_size.to(index);
  return at::_embedding_bag_dense_backward(
      grad.contiguous(), own.ids.to(index), at_places(bags.bag_of_id, own.places).to(index), sizes, sizes, rows.size,
      /*scale_grad_by_freq=*/false, bags.mode, if_defined(at_places(bags.weights, own.places)));
}

at::Tensor masked_embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& part, const at::Tensor& ids,
                                                 const at::Tensor& bag_of_id, const TableRows& rows) {
  const OwnIds own = own_ids(ids, rows);
  const at::Tensor result = grad.new_zeros(ids.sizes());
  if (own.ids.numel() == 0 || grad.numel() == 0) return result;
  const at::Tensor bags = at_places(bag_of_id, own.places).to(own.ids);
  const at::Tensor of_own =
      at::_embedding_bag_per_sample_weights_backward(grad, part, own.ids, /*offsets=*/bags, bags, kBagSum);
  return result.index_copy_(0, own.places, of_own.to(result.scalar_type()));
}

}  // namespace dtensor::internal
