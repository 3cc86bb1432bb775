#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/dlrm.h"

namespace dtensor::benchmarks {
namespace {

constexpr int64_t kIds = 4;  // of a sample in each table

// `exchange`: of the pooled rows of all tables, of so many bytes over all ranks, forward and back.
Pattern dlrm(const DeviceMesh& mesh, int64_t scale, int64_t rows, const PartitionFn& shard,
             const std::function<Traffic(double bytes, int64_t ranks)>& there,
             const std::function<Traffic(double bytes, int64_t ranks)>& back) {
  const int64_t n = mesh.size(), samples = 32 * scale;  // of a rank
  examples::DLRMConfig c;
  c.rows = rows * scale;
  c.width *= scale;
  c.hidden *= scale;
  examples::DLRM model(c);
  distribute_module(*model, mesh, shard);
  const auto dense = randn({n * samples, c.dense}, mesh, {Shard(0)}), labels = rand({n * samples}, mesh, {Shard(0)});
  const auto ids = zeros({n * samples, c.tables, kIds}, mesh, {Shard(0)}, {.dtype = torch::kLong});
  const double id_bytes = static_cast<double>(n * samples * c.tables * kIds * 8);
  const double pooled = static_cast<double>(n * samples * c.tables * c.width * 4);
  Pattern pattern = training(
      mesh,
      [model, dense, ids, labels]() mutable {
        return torch::binary_cross_entropy_with_logits(model(dense, ids), labels);
      },
      all_gather(id_bytes, n) + there(pooled, n),
      // The dense layers' gradients in one bucket.
      back(pooled, n) + all_reduce(bytes_of(*model->bottom) + bytes_of(*model->top), n));
  pattern.calls_gate = pattern.bytes_gate = 1.1;
  return pattern;
}

constexpr int64_t kRows = 1 << 17;  // of a table: 2^20 at the scale of the docs

Traffic exchange(double bytes, int64_t ranks) { return all_to_all(bytes / static_cast<double>(ranks), ranks); }

}  // namespace

Pattern dlrm_by_rows(const DeviceMesh& mesh, int64_t scale) {
  return dlrm(mesh, scale, kRows, examples::shard_tables_by_rows, reduce_scatter, all_gather);
}

// Tables about as large as what is looked up in them.
Pattern dlrm_of_small_tables(const DeviceMesh& mesh, int64_t scale) {
  return dlrm(mesh, scale, kRows / 32, examples::shard_tables_by_rows, reduce_scatter, all_gather);
}

Pattern dlrm_by_columns(const DeviceMesh& mesh, int64_t scale) {
  return dlrm(mesh, scale, kRows, examples::shard_tables_by_columns, exchange, exchange);
}

}  // namespace dtensor::benchmarks
