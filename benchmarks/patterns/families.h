// The models: each function makes one on `mesh`, whose world may be an abstract one. `scale`: 1 for sizes of tests.
// What the names of the mesh's dims mean stands with each family.
#pragma once

#include "benchmarks/patterns/pattern.h"

namespace examples {
struct DecoderConfig;
struct UNetConfig;
}  // namespace examples

namespace dtensor::benchmarks {

// "dp": batch, "tp": heads, hidden features, vocabulary, channels.
Pattern llama(const DeviceMesh& mesh, int64_t scale);
Pattern llama_generation(const DeviceMesh& mesh, int64_t scale);
Pattern transformer(const DeviceMesh& mesh, int64_t scale);
Pattern attention(const DeviceMesh& mesh, int64_t scale);
Pattern vision_transformer(const DeviceMesh& mesh, int64_t scale);
Pattern convolutional_net(const DeviceMesh& mesh, int64_t scale);
// A decoder of 32 times `scale` features.
Pattern decoder(const examples::DecoderConfig& config, const DeviceMesh& mesh, int64_t scale);
// A decoder with tokens sharded over "tp" between the layers.
Pattern sequence_parallel(const examples::DecoderConfig& config, const DeviceMesh& mesh, int64_t scale);
Pattern state_space(const DeviceMesh& mesh, int64_t scale);

// "rows": those of the images.
Pattern unet(const examples::UNetConfig& config, const DeviceMesh& mesh, int64_t scale);

// "dp": batch.
Pattern lstm(const DeviceMesh& mesh, int64_t scale);
Pattern gru(const DeviceMesh& mesh, int64_t scale);
Pattern gated_loop(const DeviceMesh& mesh, int64_t scale);

// "dp": batch and every parameter.
Pattern fully_sharded_llama(const DeviceMesh& mesh, int64_t scale);
Pattern fully_sharded_perceptron(const DeviceMesh& mesh, int64_t scale);

// One dim: batch, and the tables' rows or columns.
Pattern dlrm_by_rows(const DeviceMesh& mesh, int64_t scale);
Pattern dlrm_of_small_tables(const DeviceMesh& mesh, int64_t scale);
Pattern dlrm_by_columns(const DeviceMesh& mesh, int64_t scale);

// "ep": groups of tokens, and experts.
Pattern experts(const DeviceMesh& mesh, int64_t scale);

// One dim: nodes and edges.
Pattern graph_of_edges(const DeviceMesh& mesh, int64_t scale);
Pattern graph_of_neighbours(const DeviceMesh& mesh, int64_t scale);

// One dim: rows.
Pattern conjugate_gradient(const DeviceMesh& mesh, int64_t scale);
Pattern k_means(const DeviceMesh& mesh, int64_t scale);
Pattern power_iteration(const DeviceMesh& mesh, int64_t scale);
Pattern subspace_iteration(const DeviceMesh& mesh, int64_t scale);
Pattern tall_qr(const DeviceMesh& mesh, int64_t scale);

// Two dims: a grid's rows and columns.
Pattern stencil_by_roll(const DeviceMesh& mesh, int64_t scale);
Pattern stencil_by_roll_with_width(const DeviceMesh& mesh, int64_t scale);
Pattern stencil_by_pad(const DeviceMesh& mesh, int64_t scale);
Pattern stencil_in_place(const DeviceMesh& mesh, int64_t scale);

// One dim: the vocabulary; the rows.
Pattern sampling(const DeviceMesh& mesh, int64_t scale);
Pattern statistics(const DeviceMesh& mesh, int64_t scale);

// "dp" and "tp", of a Llama's gradients.
Pattern clipping(const DeviceMesh& mesh, int64_t scale);

}  // namespace dtensor::benchmarks
