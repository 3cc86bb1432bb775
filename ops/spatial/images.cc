// Images and other signals: pooling, interpolation, sampling, padding, pixels to channels and back. Batch and channels
// may be split, and sampling positions; the sampled spatial dims are whole.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/spatial/pad_circular.h"
#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

// [batch,] channels * kernel, positions -> [batch,] channels, height, width.
OutputMetas col2im_metas(const OpCall& call) {
  const Spec& self = *call.input("self");
  const auto size = *call.get_ints("output_size"), kernel = *call.get_ints("kernel_size");
  TORCH_CHECK(self.ndim() == 2 || self.ndim() == 3, "col2im: Expected 2D or 3D (batch mode) tensor, but got ",
              call.to_string());
  TORCH_CHECK(size.size() == 2 && kernel.size() == 2 && kernel[0] > 0 && kernel[1] > 0 &&
                  self.sizes()[self.ndim() - 2] % (kernel[0] * kernel[1]) == 0,
              "col2im: output_size and kernel_size must be two numbers each, and the size of dim ", self.ndim() - 2,
              " of the input divisible by the product of the kernel's, in ", call.to_string());
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - 1);
  sizes.back() /= kernel[0] * kernel[1];
  sizes.insert(sizes.end(), size.begin(), size.end());
  return contiguous_metas(sizes, {self.dtype()});
}

OutputMetas cudnn_sampler_metas(const OpCall& call) {
  const Spec &self = *call.input("self"), &grid = *call.input("grid");
  if (call.has_arg("grad_output")) return metas_of({meta_tensor(self).contiguous(), meta_tensor(grid).contiguous()});
  TORCH_CHECK(self.ndim() == 4 && grid.ndim() == 4, "cudnn_grid_sampler: 4 dims expected, in ", call.to_string());
  return contiguous_metas({self.sizes()[0], self.sizes()[1], grid.sizes()[1], grid.sizes()[2]}, {self.dtype()});
}

std::string affine_grid_equation(const OpCall& call) {
  return call.get_ints("size")->size() == 5 ? "nAB->nOPQT" : "nAB->nPQT";
}

// ATen takes samples for more images than there are: then image i, of which a rank does not know the number, has the
// i-th of them, so that images are not split.
std::string fractional_pool_equation(const OpCall& call) {
  const Spec &self = *call.input("self"), &samples = *call.input("random_samples");
  const bool is_volume = call.name().find("3d") != std::string::npos;
  const std::string from = is_volume ? "DHW" : "HW", to = is_volume ? "OPQ" : "PQ";
  std::string image = "c", sample = "1c";
  if (self.ndim() > static_cast<int64_t>(from.size()) + 1) {
    const bool are_as_many = samples.ndim() > 0 && samples.sizes()[0] == self.sizes()[0];
    image = are_as_many ? "nc" : "Nc";
    sample = are_as_many ? "nc" : "Mc";
  }
  return image + from + "," + sample + "K->" + image + to + "," + image + to;
}

const CoreDimsOp kPooling[] = {
    {"aten::avg_pool2d", "...HW->...PQ", "self"},
    {"aten::avg_pool2d_backward", "...PQ,...HW->...HW", "grad_output"},
    {"aten::avg_pool3d", "...DHW->...OPQ", "self"},
    {"aten::avg_pool3d_backward", "...OPQ,...DHW->...DHW", "grad_output"},
    {"aten::_adaptive_avg_pool3d", "...DHW->...OPQ", "self"},
    {"aten::_adaptive_avg_pool3d_backward", "...OPQ,...DHW->...DHW", "grad_output"},
    {"aten::adaptive_max_pool2d", "...HW->...PQ,...PQ"},
    {"aten::adaptive_max_pool2d_backward", "...PQ,...HW,...PQ->...HW", "grad_output"},
    {"aten::adaptive_max_pool3d", "...DHW->...OPQ,...OPQ"},
    {"aten::adaptive_max_pool3d_backward", "...OPQ,...DHW,...OPQ->...DHW", "grad_output"},
    {"aten::max_pool2d_with_indices", "...HW->...PQ,...PQ"},
    {"aten::max_pool2d_with_indices_backward", "...PQ,...HW,...PQ->...HW", "grad_output"},
    {"aten::max_pool3d_with_indices_backward", "...OPQ,...DHW,...OPQ->...DHW", "grad_output"},
    {.op = "aten::fractional_max_pool2d", .equation = "", .choose = fractional_pool_equation},
    {"aten::fractional_max_pool2d_backward", "...PQ,...HW,...PQ->...HW", "grad_output"},
    {.op = "aten::fractional_max_pool3d", .equation = "", .choose = fractional_pool_equation},
    {"aten::fractional_max_pool3d_backward", "...OPQ,...DHW,...OPQ->...DHW", "grad_output"},
    {"aten::max_unpool3d", "...DHW,...DHW->...OPQ", "self"},
    // Results are in the memory format of self, which their meta kernels do not return.
    {.op = "aten::_adaptive_avg_pool2d", .equation = "...HW->...PQ", .linear = "self", .in_format_of_self = true},
    {.op = "aten::_adaptive_avg_pool2d_backward",
     .equation = "...PQ,...HW->...HW",
     .linear = "grad_output",
     .in_format_of_self = true},
    {.op = "aten::max_pool3d_with_indices", .equation = "...DHW->...OPQ,...OPQ", .in_format_of_self = true},
    {.op = "aten::max_unpool2d", .equation = "...HW,...HW->...PQ", .linear = "self", .in_format_of_self = true},
    {.op = "aten::pixel_shuffle", .equation = "...cHW->...cPQ", .linear = "self", .in_format_of_self = true},
    {.op = "aten::pixel_unshuffle", .equation = "...cHW->...cPQ", .linear = "self", .in_format_of_self = true},
};

// Dims to which no padding is added may be split. The padding of the last dim comes first.
std::string padding_equation(const OpCall& call) {
  const std::vector<int64_t> padding = *call.get_ints("padding");
  std::string self = "...", padded = "...";
  for (size_t k = padding.size() / 2; k-- > 0;) {
    const bool stays = padding[2 * k] == 0 && padding[2 * k + 1] == 0;
    const auto letter = static_cast<char>('a' + k);
    self += stays ? letter : static_cast<char>('A' + k);
    padded += stays ? letter : static_cast<char>('P' + k);
  }
  return call.has_arg("grad_output") ? padded + "," + self + "->" + self : self + "->" + padded;
}

constexpr const char* kPadding[] = {"reflection_pad1d",  "reflection_pad2d",  "reflection_pad3d",
                                    "replication_pad1d", "replication_pad2d", "replication_pad3d"};

const CoreDimsOp kSampling[] = {
    {"aten::grid_sampler_2d", "ncHW,npqT->ncpq", "input"},
    {"aten::_grid_sampler_2d_cpu_fallback", "ncHW,npqT->ncpq", "input"},
    {"aten::grid_sampler_2d_backward", "ncpq,ncHW,npqT->ncHW,npqT", "grad_output"},
    {"aten::grid_sampler_3d", "ncDHW,nopqT->ncopq", "input"},
    {"aten::grid_sampler_3d_backward", "ncopq,ncDHW,nopqT->ncDHW,nopqT", "grad_output"},
    {.op = "aten::cudnn_grid_sampler", .equation = "ncHW,npqT->ncpq", .linear = "self", .metas = cudnn_sampler_metas},
    {.op = "aten::cudnn_grid_sampler_backward",
     .equation = "ncHW,npqT,ncpq->ncHW,npqT",
     .linear = "grad_output",
     .metas = cudnn_sampler_metas},
    {.op = "aten::affine_grid_generator",
     .equation = "",
     .linear = "theta",
     .sizes = "size",
     .choose = affine_grid_equation},
    {"aten::im2col", "ncHW->ncL|cHW->cL", "self"},
    {.op = "aten::col2im", .equation = "ncL->ncHW|cL->cHW", .linear = "self", .metas = col2im_metas},
};

// Interpolation of images, and its gradients.
struct Interpolation {
  const char* op;
  int dims;
};
constexpr Interpolation kInterpolations[] = {
    {"upsample_nearest1d", 1},     {"_upsample_nearest_exact1d", 1}, {"upsample_linear1d", 1},
    {"upsample_nearest2d", 2},     {"_upsample_nearest_exact2d", 2}, {"upsample_bilinear2d", 2},
    {"upsample_bicubic2d", 2},     {"_upsample_bilinear2d_aa", 2},   {"_upsample_bicubic2d_aa", 2},
    {"_upsample_lanczos2d_aa", 2}, {"upsample_nearest3d", 3},        {"_upsample_nearest_exact3d", 3},
    {"upsample_trilinear3d", 3},
};
constexpr const char* kInterpolated[] = {"ncW->ncQ", "ncHW->ncPQ", "ncDHW->ncOPQ"};

// ATen's meta kernels reject some empty batches, which its kernels accept.
OutputMetas interpolated_metas(const OpCall& call) {
  const at::Tensor self = meta_tensor(*call.input("self"));
  std::vector<int64_t> sizes = self.sizes().slice(0, 2).vec();
  const std::vector<int64_t> output = *call.get_ints("output_size");
  sizes.insert(sizes.end(), output.begin(), output.end());
  return metas_of({self.new_empty(sizes).contiguous(self.suggest_memory_format())});
}

}  // namespace

// _pad_circular(self, pad), above autograd: ATen's own code fills memory piece by piece. The last dim's padding comes
// first; negative padding cuts off.
void pad_circular_by_pieces(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto pad = args["pad"].toIntVector();
  const auto dims = static_cast<int64_t>(pad.size() / 2);
  bool usual = pad.size() % 2 == 0 && dims <= self.dim();
  for (int64_t k = 0; usual && k < dims; ++k) {
    const int64_t size = self.size(self.dim() - 1 - k), left = pad[2 * k], right = pad[2 * k + 1];
    const int64_t kept = size + std::min<int64_t>(left, 0) + std::min<int64_t>(right, 0);
    usual = left <= kept && right <= kept && kept > 0;
  }
  if (!usual) return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  torch::jit::drop(stack, op.schema().arguments().size());
  at::Tensor x = self.contiguous();  // as ATen's result, whatever the memory format
  bool is_new = false;               // no view of self
  for (int64_t k = 0; k < dims; ++k) {
    const int64_t d = self.dim() - 1 - k, left = pad[2 * k], right = pad[2 * k + 1];
    if (left < 0 || right < 0) x = x.slice(d, std::max<int64_t>(-left, 0), x.size(d) + std::min<int64_t>(right, 0));
    std::vector<at::Tensor> pieces;
    if (left > 0) pieces.push_back(x.narrow(d, x.size(d) - left, left));
    pieces.push_back(x);
    if (right > 0) pieces.push_back(x.narrow(d, 0, right));
    if (pieces.size() == 1) continue;
    x = at::cat(pieces, d);
    is_new = true;
  }
  stack.emplace_back(is_new ? x : x.clone(at::MemoryFormat::Contiguous));
}

const RuleFamily image_rules("images", [](RuleRegistry& registry) {
  for (const CoreDimsOp& op : kPooling) add_core_dims(registry, op);
  for (const std::string op : kPadding) {
    CoreDimsOp line{.op = "aten::" + op, .equation = "", .linear = "self", .choose = padding_equation};
    line.in_format_of_self = !op.ends_with("1d");
    add_core_dims(registry, line);
    line.op += "_backward";
    line.linear = "grad_output";
    add_core_dims(registry, line);
  }
  for (const CoreDimsOp& op : kSampling) add_core_dims(registry, op);
  for (const Interpolation& op : kInterpolations) {
    const std::string name = std::string("aten::") + op.op;
    const char* equation = kInterpolated[op.dims - 1];
    add_core_dims(registry, {.op = name, .equation = equation, .linear = "self", .metas = interpolated_metas});
    add_core_dims(registry, {name + "_backward", equation, "grad_output", "input_size"});
  }
});

}  // namespace dtensor::internal
