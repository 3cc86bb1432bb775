#include "benchmarks/patterns/cases.h"

#include "benchmarks/patterns/families.h"
#include "examples/models/decoder.h"
#include "examples/models/unet.h"

namespace dtensor::benchmarks {
namespace {

constexpr bool kData = true;

std::vector<PatternCase> text_models() {
  using examples::FeedForward, examples::Norm, examples::Projection;
  const auto variant = [](const examples::DecoderConfig& config) {
    return [config](const DeviceMesh& mesh, int64_t scale) { return decoder(config, mesh, scale); };
  };
  const auto split = [](const DeviceMesh& mesh, int64_t scale) { return sequence_parallel({}, mesh, scale); };
  return {
      {"Llama", llama, {2, 4}, {"dp", "tp"}},
      {"Llama", llama, {256, 4}, {"dp", "tp"}},
      {"Llama generation", llama_generation, {4}, {"tp"}},
      {"Decoder", variant({}), {8}, {"tp"}},
      {"Decoder", variant({}), {2, 4}, {"dp", "tp"}},
      {"Decoder, RMSNorm", variant({.norm = Norm::kRMSNorm}), {8}, {"tp"}},
      {"Decoder, RMSNorm by hand", variant({.norm = Norm::kRMSNormByHand}), {8}, {"tp"}},
      {"Decoder, LayerNorm by hand", variant({.norm = Norm::kLayerNormByHand}), {8}, {"tp"}},
      {"Decoder, q k v cut", variant({.projection = Projection::kFusedAndCut}), {8}, {"tp"}},
      {"Decoder, q k v viewed", variant({.projection = Projection::kFusedAndViewed}), {8}, {"tp"}},
      {"Decoder, gated halves", variant({.feed_forward = FeedForward::kGatedHalves}), {8}, {"tp"}},
      {"Decoder, GLU", variant({.feed_forward = FeedForward::kGLU}), {8}, {"tp"}},
      {"Decoder, tokens split", split, {8}, {"tp"}},
      {"Decoder, tokens split", split, {2, 4}, {"dp", "tp"}},
      // Asks whether its inputs are equal.
      {"Transformer", transformer, {4}, {"dp"}, kData},
      {"Transformer", transformer, {4}, {"tp"}, kData},
      {"Transformer", transformer, {2, 4}, {"dp", "tp"}, kData},
      {"MultiheadAttention", attention, {4}, {"tp"}, kData},
  };
}

std::vector<PatternCase> image_and_series_models() {
  const auto fields = [](examples::Upsampling upsampling) {
    return [upsampling](const DeviceMesh& mesh, int64_t scale) {
      return unet({.channels = 4, .upsampling = upsampling}, mesh, scale);
    };
  };
  return {
      {"Vision transformer", vision_transformer, {8}, {"tp"}},
      {"Vision transformer", vision_transformer, {2, 4}, {"dp", "tp"}},
      {"Vision transformer", vision_transformer, {256, 4}, {"dp", "tp"}},
      {"Convolutional net", convolutional_net, {8}, {"dp"}},
      {"U-Net", fields(examples::Upsampling::kNearest), {8}, {"rows"}},
      {"U-Net", fields(examples::Upsampling::kNearest), {256}, {"rows"}},
      {"U-Net, bilinear", fields(examples::Upsampling::kBilinear), {8}, {"rows"}},
      {"U-Net, transposed", fields(examples::Upsampling::kTransposed), {8}, {"rows"}},
      {"State space", state_space, {8}, {"tp"}},
      {"State space", state_space, {2, 4}, {"dp", "tp"}},
      {"LSTM", lstm, {8}, {"dp"}},
      {"LSTM", lstm, {1024}, {"dp"}},
      {"GRU", gru, {8}, {"dp"}},
      {"Gated loop", gated_loop, {8}, {"dp"}},
  };
}

std::vector<PatternCase> fully_sharded_and_sparse_models() {
  return {
      {"FSDP Llama", fully_sharded_llama, {8}, {"dp"}},
      {"FSDP perceptron", fully_sharded_perceptron, {8}, {"dp"}},
      {"DLRM by rows", dlrm_by_rows, {16}, {"all"}},
      {"DLRM by rows", dlrm_by_rows, {1024}, {"all"}},
      {"DLRM, small tables", dlrm_of_small_tables, {16}, {"all"}},
      {"DLRM by columns", dlrm_by_columns, {16}, {"all"}},
      // Asks for the least and the largest index.
      {"Experts", experts, {8}, {"ep"}, kData},
      {"Graph of edges", graph_of_edges, {8}, {"rows"}},
      {"Graph of neighbours", graph_of_neighbours, {8}, {"rows"}},
  };
}

std::vector<PatternCase> numeric_programs() {
  return {
      {"Conjugate gradient", conjugate_gradient, {8}, {"rows"}},
      {"Conjugate gradient", conjugate_gradient, {1024}, {"rows"}},
      {"k-means", k_means, {8}, {"rows"}},
      {"k-means", k_means, {1024}, {"rows"}},
      {"Power iteration", power_iteration, {8}, {"rows"}},
      {"Subspace iteration", subspace_iteration, {8}, {"rows"}},
      {"Tall QR", tall_qr, {8}, {"rows"}},
      {"Stencil by roll", stencil_by_roll, {4, 4}, {"rows", "columns"}},
      {"Stencil by roll, declared width", stencil_by_roll_with_width, {4, 4}, {"rows", "columns"}},
      {"Stencil by pad", stencil_by_pad, {4, 4}, {"rows", "columns"}},
      {"Stencil by pad", stencil_by_pad, {32, 32}, {"rows", "columns"}},
      {"Stencil in place", stencil_in_place, {4, 4}, {"rows", "columns"}},
      {"Sampling", sampling, {8}, {"vocab"}},
      {"Sampling", sampling, {1024}, {"vocab"}},
      {"Statistics", statistics, {8}, {"rows"}},
      {"Statistics", statistics, {1024}, {"rows"}},
      // Returns a number.
      {"Clipping", clipping, {2, 4}, {"dp", "tp"}, kData},
  };
}

}  // namespace

const std::vector<PatternCase>& pattern_cases() {
  static const std::vector<PatternCase> cases = [] {
    std::vector<PatternCase> all;
    for (const auto& family :
         {text_models(), image_and_series_models(), fully_sharded_and_sparse_models(), numeric_programs()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  return cases;
}

DeviceMesh mesh_of(const PatternCase& c) {
  int64_t ranks = 1;
  for (const int64_t n : c.shape) ranks *= n;
  return DeviceMesh(c.data ? World::local(ranks) : World::abstract(ranks), c.shape, c.names);
}

}  // namespace dtensor::benchmarks
