#include "examples/recommender/dlrm.h"

namespace examples {

using torch::nn::EmbeddingBag;
using torch::nn::EmbeddingBagOptions;
using torch::nn::Linear;
using torch::nn::ReLU;

DlrmImpl::DlrmImpl(const DlrmConfig& c) : config(c) {
  for (const TableConfig& t : config.tables) {
    const std::shared_ptr<torch::nn::Module> bag =
        EmbeddingBag(EmbeddingBagOptions(t.rows, c.width).mode(torch::kSum)).ptr();
    tables->update(std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{{t.name, bag}});
  }
  const auto vectors = static_cast<int64_t>(c.tables.size()) + 1;
  bottom = torch::nn::Sequential(Linear(c.dense, c.hidden), ReLU(), Linear(c.hidden, c.width), ReLU());
  top = torch::nn::Sequential(Linear(c.width + vectors * (vectors - 1) / 2, c.hidden), ReLU(), Linear(c.hidden, 1));
  register_module("tables", tables);
  register_module("bottom", bottom);
  register_module("top", top);
}

EmbeddingBag DlrmImpl::table(const std::string& name) {
  return std::dynamic_pointer_cast<torch::nn::EmbeddingBagImpl>(tables[name]);
}

torch::Tensor DlrmImpl::forward(const torch::Tensor& dense, const std::vector<torch::Tensor>& ids) {
  std::vector<torch::Tensor> pooled;
  for (size_t t = 0; t < ids.size(); ++t) pooled.push_back(table(config.tables[t].name)(ids[t]));
  return predict(dense, pooled);
}

torch::Tensor DlrmImpl::predict(const torch::Tensor& dense, const std::vector<torch::Tensor>& pooled) {
  const torch::Tensor x = bottom->forward(dense);
  std::vector<torch::Tensor> vectors = {x};
  vectors.insert(vectors.end(), pooled.begin(), pooled.end());
  const torch::Tensor all = torch::stack(vectors, 1);           // [samples, vectors, width]
  const torch::Tensor products = all.bmm(all.transpose(1, 2));  // [samples, vectors, vectors]
  std::vector<torch::Tensor> features = {x};
  for (int64_t i = 1; i < products.size(1); ++i) features.push_back(products.select(1, i).narrow(1, 0, i));
  return top->forward(torch::cat(features, 1)).squeeze(1);
}

}  // namespace examples
