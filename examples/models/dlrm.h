// A recommendation model in plain torch::nn: embedding tables whose rows are summed per sample, dense features through
// a multi-layer perceptron, products of all pairs, a score.
//
// Source: Naumov et al., Deep Learning Recommendation Model for Personalization and Recommendation Systems, 2019.
#pragma once

#include <torch/nn.h>

#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace dtensor {
struct ParallelPlan;
}

namespace examples {

struct DLRMConfig {
  int64_t tables = 8;
  int64_t rows = 1000;  // of each table
  int64_t width = 16;   // of an embedding
  int64_t dense = 13;   // dense features of a sample
  int64_t hidden = 32;
};

class DLRMImpl : public torch::nn::Module {
 public:
  explicit DLRMImpl(const DLRMConfig& c)
      : tables(register_module("tables", torch::nn::ModuleList())),
        bottom(register_module("bottom", torch::nn::Sequential(torch::nn::Linear(c.dense, c.hidden), torch::nn::ReLU(),
                                                               torch::nn::Linear(c.hidden, c.width)))),
        top(register_module(
            "top", torch::nn::Sequential(torch::nn::Linear(c.width + (c.tables + 1) * (c.tables + 1), c.hidden),
                                         torch::nn::ReLU(), torch::nn::Linear(c.hidden, 1)))) {
    for (int64_t i = 0; i < c.tables; ++i) tables->push_back(torch::nn::Embedding(c.rows, c.width));
  }

  // dense: [batch, dense features]; ids: [batch, tables, ids of a sample] -> scores [batch].
  torch::Tensor forward(const torch::Tensor& dense, const torch::Tensor& ids) {
    const auto x = bottom->forward(dense);
    std::vector<torch::Tensor> features = {x};
    for (size_t i = 0; i < tables->size(); ++i) {
      features.push_back(tables[i]->as<torch::nn::Embedding>()->forward(ids.select(1, static_cast<int64_t>(i))).sum(1));
    }
    const auto all = torch::stack(features, 1);  // [batch, tables + 1, width]
    const auto pairs = all.bmm(all.transpose(1, 2)).flatten(1);
    return top->forward(torch::cat({x, pairs}, 1)).squeeze(1);
  }

  torch::nn::ModuleList tables;
  torch::nn::Sequential bottom, top;
};
TORCH_MODULE(DLRM);

// For distribute_module(): every table's rows, or its columns, over all dims of the mesh; everything else replicated.
void shard_tables_by_rows(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);
void shard_tables_by_columns(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

// For parallelize_module(), on a mesh of one dim: the same as styles. They leave the layouts of looked-up rows to the
// operators, which move those of all tables together.
dtensor::ParallelPlan styles_of_tables_by_rows();
dtensor::ParallelPlan styles_of_tables_by_columns();

}  // namespace examples
