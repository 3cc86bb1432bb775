#include "ops/halo/box_convolution.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <tuple>

#include "ops/spatial/window_arguments.h"

namespace dtensor::internal {
namespace {

// One dim of a convolution of any kind.
struct Sizes {
  int64_t dim, elements, kernel, stride, padding, dilation, output_padding;

  bool is_valid() const { return kernel >= 1 && stride >= 1 && dilation >= 1 && padding >= 0 && output_padding >= 0; }
  int64_t span() const { return dilation * (kernel - 1) + 1; }
};

bool add_windows(Convolution& c, const Sizes& s) {
  const int64_t room = s.elements + 2 * s.padding - s.span();
  if (room < 0) return false;
  c.windows.push_back({s.dim, s.elements, room / s.stride + 1, s.kernel, s.stride, s.padding, s.dilation});
  return true;
}

bool add_spread(Convolution& c, const Sizes& s) {
  const int64_t count = (s.elements - 1) * s.stride - 2 * s.padding + s.span() + s.output_padding;
  if (count < 1 || s.output_padding >= std::max(s.stride, s.dilation)) return false;
  c.spread.push_back({s.dim, s.elements, count, s.stride, -s.padding, s.span()});
  return true;
}

bool is_empty(const at::Tensor& t) { return t.numel() == 0; }

// How far the result of a transposed convolution on the box extends beyond the part; negative where the part extends
// further: places to which no element contributes. In the format of constant_pad_nd().
std::vector<int64_t> pads_to_part(const Convolution& c, const LocalLayout& part) {
  std::vector<int64_t> pads;
  for (size_t k = c.spread.size(); k-- > 0;) {
    const SpreadDim& s = c.spread[k];
    const IndexRange own = part.dims[s.dim][0], box = s.reach(part.dims[s.dim]);
    const int64_t begin = box.begin * s.stride + s.first, size = (box.size - 1) * s.stride + s.span;
    pads.insert(pads.end(), {begin - own.begin, own.begin + own.size - begin - size});
  }
  return pads;
}

bool has_positive(const std::vector<int64_t>& pads) {
  return std::any_of(pads.begin(), pads.end(), [](int64_t n) { return n > 0; });
}

at::Tensor padded_by(const at::Tensor& t, const std::vector<int64_t>& pads) {
  const bool is_same = std::all_of(pads.begin(), pads.end(), [](int64_t n) { return n == 0; });
  return is_same ? t : at::constant_pad_nd(t, pads);
}

at::Tensor per_channel(const at::Tensor& bias, int64_t ndim) {
  std::vector<int64_t> shape(static_cast<size_t>(ndim), 1);
  shape[1] = bias.size(0);
  return bias.view(shape);
}

at::Tensor sum_per_channel(const at::Tensor& grad) {
  std::vector<int64_t> others;
  for (int64_t d = 0; d < grad.dim(); ++d) {
    if (d != 1) others.push_back(d);
  }
  return grad.sum(others);
}

at::Tensor spread_over(const Convolution& c, const LocalLayout& part, const at::Tensor& box, const at::Tensor& weight,
                       const at::Tensor& bias) {
  const std::vector<int64_t> none(c.spread.size(), 0), pads = pads_to_part(c, part);
  const bool late_bias = bias.defined() && has_positive(pads);  // it applies also where no element contributes
  const at::Tensor result = padded_by(
      at::convolution(box, weight, late_bias ? at::Tensor() : bias, c.stride, none, c.dilation, true, none, c.groups),
      pads);
  return late_bias ? result + per_channel(bias, result.dim()) : result;
}

}  // namespace

Shape Convolution::output_sizes(const Shape& input) const {
  Shape sizes = input;
  sizes[1] = channels;
  for (const WindowDim& w : windows) sizes[w.dim] = w.count;
  for (const SpreadDim& s : spread) sizes[s.dim] = s.count;
  return sizes;
}

BoxKey Convolution::box_key() const {
  BoxKey key = {int64_t{transposed}};
  for (const WindowDim& w : windows) key.insert(key.end(), {w.count, w.size, w.stride, w.padding, w.dilation});
  for (const SpreadDim& s : spread) key.insert(key.end(), {s.count, s.stride, s.first, s.span});
  return key;
}

std::optional<Convolution> convolution_of(const Arguments& args) {
  const at::Tensor input = args.tensor("input"), weight = args.tensor("weight");
  if (input.dim() < 3 || input.dim() != weight.dim()) return std::nullopt;
  const auto stride = args["stride"].toIntVector(), padding = args["padding"].toIntVector(),
             dilation = args["dilation"].toIntVector(), output_padding = args["output_padding"].toIntVector();
  const auto n = static_cast<size_t>(input.dim() - 2);
  for (const size_t given : {stride.size(), padding.size(), dilation.size(), output_padding.size()}) {
    if (given != 1 && given != n) return std::nullopt;
  }
  Convolution c;
  c.transposed = args["transposed"].toBool();
  c.groups = args["groups"].toInt();
  const int64_t in_channels = weight.size(c.transposed ? 0 : 1) * (c.transposed ? 1 : c.groups);
  if (c.groups < 1 || input.size(1) != in_channels || weight.size(0) % c.groups != 0) return std::nullopt;
  c.channels = c.transposed ? weight.size(1) * c.groups : weight.size(0);
  for (size_t k = 0; k < n; ++k) {
    const auto d = static_cast<int64_t>(k + 2);
    const Sizes s{d,
                  input.size(d),
                  weight.size(d),
                  along(stride, k),
                  along(padding, k),
                  along(dilation, k),
                  c.transposed ? along(output_padding, k) : 0};
    if (!s.is_valid() || !(c.transposed ? add_spread(c, s) : add_windows(c, s))) return std::nullopt;
    c.stride.push_back(s.stride);
    c.dilation.push_back(s.dilation);
  }
  return c;
}

at::Tensor convolved(const Convolution& c, const LocalLayout& part, const at::Tensor& box, const at::Tensor& weight,
                     const at::Tensor& bias) {
  const Shape sizes = part.sizes();
  const std::vector<int64_t> none(c.stride.size(), 0);
  const bool is_nothing = c10::multiply_integers(sizes) == 0;
  if (!is_nothing && !is_empty(box) && c.transposed) return spread_over(c, part, box, weight, bias);
  if (!is_nothing && !is_empty(box))
    return at::convolution(box, weight, bias, c.stride, none, c.dilation, false, none, c.groups);
  at::Tensor result = box.new_zeros({sizes.data(), sizes.size()});
  return is_nothing || !bias.defined() ? result : result.add_(per_channel(bias, result.dim()));
}

std::array<at::Tensor, 3> gradients(const Convolution& c, const LocalLayout& part, const at::Tensor& grad,
                                    const at::Tensor& box, const at::Tensor& weight, const std::array<bool, 3>& mask) {
  std::array<at::Tensor, 3> result;
  const bool aside = mask[2] && (is_empty(grad) || is_empty(box) || c.transposed);  // of the bias, by itself
  if (!is_empty(grad) && !is_empty(box) && (mask[0] || mask[1] || !aside)) {
    std::vector<int64_t> pads;
    if (c.transposed) pads = pads_to_part(c, part);
    for (int64_t& n : pads) n = -n;
    const std::vector<int64_t> none(c.stride.size(), 0), bias_sizes = {grad.size(1)};
    std::tie(result[0], result[1], result[2]) =
        at::convolution_backward(padded_by(grad, pads), box, weight, at::OptionalIntArrayRef(bias_sizes), c.stride,
                                 none, c.dilation, c.transposed, none, c.groups, {mask[0], mask[1], mask[2] && !aside});
  } else {
    if (mask[0]) result[0] = at::zeros_like(box);
    if (mask[1]) result[1] = at::zeros_like(weight);
  }
  if (aside) result[2] = sum_per_channel(grad);
  return result;
}

}  // namespace dtensor::internal
