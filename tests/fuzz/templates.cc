#include "tests/fuzz/templates.h"

#include <map>

#include "absl/strings/str_split.h"

namespace dtensor::fuzz {
namespace {

// "name; argument template; argument template". A name may occur in several lines.
constexpr const char* kTemplates[] = {
    "mm; self AB; mat2 BC",
    "bmm; self NAB; mat2 NBC",
    "matmul; self *AB; other BC",
    "matmul; self NAB; other NBC",
    "matmul; self *A; other A",
    "linalg_matmul; self *AB; other BC",
    "mv; self AB; vec B",
    "dot; self A; tensor A",
    "vdot; self A; other A",
    "inner; self *A; other BA",
    "outer; self A; vec2 B",
    "ger; self A; vec2 B",
    "addmm; self AC; mat1 AB; mat2 BC",
    "addmm; self C; mat1 AB; mat2 BC",
    "addmv; self A; mat AB; vec B",
    "addr; self AB; vec1 A; vec2 B",
    "addbmm; self AC; batch1 NAB; batch2 NBC",
    "baddbmm; self NAC; batch1 NAB; batch2 NBC",
    "linear; input *A; weight BA; bias B",
    "linear; input *A; weight BA; bias ",
    "bilinear; input1 NA; input2 NB; weight CAB; bias C",
    "chain_matmul; matrices AB",
    "einsum; equation 'ij,jk->ik'; tensors AB,BC; path none",
    "einsum; equation 'bij,bjk->bik'; tensors NAB,NBC; path none",
    "einsum; equation 'ij->ji'; tensors AB; path none",
    "einsum; equation 'i,j->ij'; tensors A,B; path none",
    "einsum; equation 'ii->i'; tensors AA; path none",
    "einsum; equation '...i,...i->...'; tensors *A,A; path none",
    "tensordot; self ABC; other BCD; dims_self 1 2; dims_other 0 1",
    "tensordot; self AB; other CB; dims_self 1; dims_other 1",
    "embedding; weight VD; indices #V:*",
    "layer_norm; input *A; normalized_shape [A]; weight A; bias A",
    "layer_norm; input *AB; normalized_shape [AB]; weight AB; bias AB",
    "native_layer_norm; input *A; normalized_shape [A]; weight A; bias A; eps 0.00001",
    "rms_norm; input *A; normalized_shape [A]; weight A",
    "batch_norm; input NAB; weight A; bias A; running_mean A; running_var ; training true",
    "batch_norm; input NA; weight A; bias A; running_mean ; running_var ; training true",
    "instance_norm; input NAB; weight A; bias A; running_mean ; running_var ; use_input_stats true",
    "group_norm; input NAB; num_groups 1; weight A; bias A",
    "conv1d; input NAB; weight CAx; bias C; stride 1; padding 1; dilation 1; groups 1",
    "conv2d; input NABC; weight DAxx; bias D; stride 1; padding 1; dilation 1; groups 1",
    "conv2d; input NABC; weight DAxx; bias ; stride 1; padding 0; dilation 1; groups 1",
    "cross_entropy_loss; self NC; target #C:N; weight C",
    "cross_entropy_loss; self NC; target #C:N; weight ",
    "cross_entropy_loss; self NCA; target #C:NA; weight ",
    "cross_entropy_loss; self NC; target NC; weight C",
    "nll_loss; self NC; target #C:N; weight C",
    "nll_loss; self NC; target #C:N; weight ",
    "nll_loss_nd; self NC; target #C:N; weight ",
    "nll_loss2d; self NCAB; target #C:NAB; weight C",
    "multi_margin_loss; self NC; target #C:N; weight C",
    "cosine_embedding_loss; input1 NA; input2 NA; target N",
    "triplet_margin_loss; anchor NA; positive NA; negative NA",
    "scaled_dot_product_attention; query NABC; key NADC; value NADE; attn_mask ; dropout_p 0.",
    "scaled_dot_product_attention; query NABC; key NADC; value NADC; attn_mask ?BD; dropout_p 0.; is_causal false",
    "scaled_dot_product_attention; query NABC; key NADC; value NADC; attn_mask BD; dropout_p 0.; is_causal false",
    "scaled_dot_product_attention; query NBC; key NDC; value NDC; attn_mask ; dropout_p 0.",
    "prelu; self NA; weight A",
    "prelu; self *; weight x",
    "cdist; x1 AB; x2 CB",
    "pairwise_distance; x1 AB; x2 AB",
    "cosine_similarity; x1 AB; x2 AB",
    "kron; self AB; other CD",
    "cross; self Ay; other Ay; dim 1",
    "linalg_cross; self Ay; other Ay; dim 1",
    "block_diag; tensors AB,CD",
    "hstack; tensors AB,AC",
    "vstack; tensors AB,CB",
    "cartesian_prod; tensors A,B",
    "meshgrid; tensors A,B",
    "cat; tensors AB,CB; dim 0",
    "cat; tensors AB,AC,AD; dim 1",
    "cat; tensors *A,*A; dim -1",
    "searchsorted; sorted_sequence A; self *",
    "bucketize; self *; boundaries A",
    "index_add; self AB; dim 0; index #A:C; source CB",
    "index_add; self AB; dim 1; index #B:C; source AC",
    "index_copy; self AB; dim 0; index #A:A; source AB",
    "index_reduce; self AB; dim 0; index #A:C; source CB",
    "diagonal_scatter; self AA; src A; offset 0",
    "select_scatter; self AB; src B; dim 0",
    "slice_scatter; self AB; src AB; dim 0; start none; end none; step 1",
    "linalg_matrix_power; self AA",
    "matrix_power; self AA",
    "linalg_solve; A AA; B AB",
    "linalg_inv; A AA",
    "inverse; self AA",
    "linalg_det; A AA",
    "det; self AA",
    "trace; self AB",
    "masked_scatter; self *A; mask ?A; source ABCA",
    "one_hot; self #V:*; num_classes 7",
    "unravel_index; indices #V:A; shape [VV]",
    "max_pool2d; self NABC; kernel_size 2; stride 1; padding 0; dilation 1",
    "avg_pool2d; self NABC; kernel_size 2; stride 1; padding 0",
    "adaptive_avg_pool2d; self NABC; output_size 1 2",
    "pixel_shuffle; self NxAB; upscale_factor 1",
    "index_put; self AB; indices #A:C; values CB",
    "index_put; self AB; indices #A:C,#B:C; values C",
    "index_put; self AB; indices ?A; values B",
    "index; self AB; indices #A:C",
    "index; self AB; indices #A:C,#B:C",
    "index; self AB; indices ,#B:CD",
    "index; self *A; indices ?*A",
    "index; self AB; indices ?A",
};

std::multimap<std::string, Template> parse() {
  std::multimap<std::string, Template> all;
  for (const char* line : kTemplates) {
    const std::vector<std::string> parts = absl::StrSplit(line, "; ");
    Template t;
    for (size_t i = 1; i < parts.size(); ++i) t.push_back(absl::StrSplit(parts[i], absl::MaxSplits(' ', 1)));
    all.emplace(parts[0], t);
  }
  return all;
}

}  // namespace

const Template* template_of(const std::string& base, uint64_t choice) {
  static const auto* const all = new std::multimap<std::string, Template>(parse());
  const size_t count = all->count(base);
  if (count == 0) return nullptr;
  auto it = all->find(base);
  std::advance(it, static_cast<int64_t>(choice % count));
  return &it->second;
}

}  // namespace dtensor::fuzz
