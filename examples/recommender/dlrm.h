// A DLRM in plain torch::nn: a dense MLP, embedding bags, all pairs of their outputs multiplied, an MLP on top.
#pragma once

#include <torch/nn.h>

#include <string>
#include <vector>

namespace examples {

struct TableConfig {
  std::string name;
  int64_t rows = 1;
  int64_t ids = 1;  // of a sample
};

struct DlrmConfig {
  std::vector<TableConfig> tables;
  int64_t width = 16;  // of every table, and of the dense MLP's output
  int64_t dense = 13;  // features of a sample
  int64_t hidden = 32;
};

struct DlrmImpl : torch::nn::Module {
  explicit DlrmImpl(const DlrmConfig& config);

  // ids[t]: [samples, ids of table t]. Logits of a click, [samples].
  torch::Tensor forward(const torch::Tensor& dense, const std::vector<torch::Tensor>& ids);
  // The same from the results of the tables, [samples, width] each.
  torch::Tensor predict(const torch::Tensor& dense, const std::vector<torch::Tensor>& pooled);

  torch::nn::EmbeddingBag table(const std::string& name);

  DlrmConfig config;
  torch::nn::ModuleDict tables;
  torch::nn::Sequential bottom, top;
};
TORCH_MODULE(Dlrm);

}  // namespace examples
