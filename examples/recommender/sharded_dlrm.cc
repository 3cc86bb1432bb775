#include "examples/recommender/sharded_dlrm.h"

#include "sharded/embedding.h"

namespace examples {

using namespace dtensor;

ShardedDlrm::ShardedDlrm(Dlrm model, const World& world, const sharded::ShardingPlan& plan)
    : model_(std::move(model)), mesh_(world, {world.size()}, {"ranks"}) {
  sharded::shard_module(*model_, plan, world);
  distribute_module(*model_->bottom, mesh_);
  distribute_module(*model_->top, mesh_);
  for (const TableConfig& t : model_->config.tables) {
    auto table = model_->table(t.name);
    if (!sharded::is_sharded(table->weight)) distribute_module(*table, mesh_);
  }
}

// Every process has the batch: it takes its part without communication.
at::Tensor ShardedDlrm::batch(const at::Tensor& whole) const {
  return distribute_tensor(whole, mesh_, {Shard(0)}, std::nullopt);
}

std::vector<at::Tensor> ShardedDlrm::lookup(const Clicks& clicks) {
  const auto& ranks = mesh_.local_ranks();
  const int64_t samples = clicks.labels.size(0) / mesh_.size();
  std::vector<at::Tensor> pooled(clicks.ids.size());
  std::vector<sharded::BagTable> tables;
  std::vector<size_t> places;
  for (size_t t = 0; t < clicks.ids.size(); ++t) {
    const at::Tensor& weight = model_->table(model_->config.tables[t].name)->weight;
    if (!sharded::is_sharded(weight)) {
      pooled[t] = torch::embedding(weight, batch(clicks.ids[t])).sum(1);
      continue;
    }
    sharded::EmbeddingBagOptions options;
    options.mode = "sum";
    options.same_sizes = true;
    std::vector<sharded::BagInput> own;
    for (int64_t rank : ranks) own.push_back({clicks.ids[t].narrow(0, rank * samples, samples)});
    tables.push_back({sharded::ShardedTensor(weight), options, own});
    places.push_back(t);
  }
  const auto rows = sharded::embedding_bags(tables);
  for (size_t k = 0; k < places.size(); ++k) pooled[places[k]] = from_local(rows[k], mesh_, {Shard(0)});
  return pooled;
}

at::Tensor ShardedDlrm::step(const Clicks& clicks) {
  MeshScope scope(mesh_);
  DelayGradientReduction later;
  const at::Tensor logits = model_->predict(batch(clicks.dense), lookup(clicks));
  const at::Tensor loss = torch::binary_cross_entropy_with_logits(logits, batch(clicks.labels));
  loss.backward();
  return loss.detach();
}

void ShardedDlrm::reduce_gradients() {
  std::vector<at::Tensor> owners, gradients;
  for (const auto& p : model_->named_parameters()) {
    if (sharded::is_sharded(p.value()) || !p.value().grad().defined()) continue;
    owners.push_back(p.value());
    gradients.push_back(p.value().grad());
  }
  const auto reduced = redistribute_many(gradients, {{Replicate()}});
  for (size_t i = 0; i < owners.size(); ++i) owners[i].mutable_grad() = reduced[i];
}

sharded::NamedParams ShardedDlrm::parameters() const { return sharded::named_params_with_sharded_tensor(*model_); }

}  // namespace examples
