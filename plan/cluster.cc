#include "plan/cluster.h"

#include <c10/util/Exception.h>

#include "plan/cost_json.h"

namespace dtensor {
using namespace internal;

namespace {

LinkCost read_link(CostFields& fields, const char* field) {
  CostFields link(*fields.find(field), fields.path(field));
  link.require({"latency", "hop_latency", "bandwidth"});
  LinkCost cost;
  link.number_or_zero("latency", cost.latency);
  link.number_or_zero("hop_latency", cost.hop_latency);
  link.number("bandwidth", cost.bandwidth);
  link.check_all_known();
  return cost;
}

Cluster::Efficiency read_efficiency(CostFields& fields) {
  const std::string where = fields.path("efficiency");
  CostFields parts(*fields.find("efficiency"), where);
  parts.require({"products", "memory", "links", "reason"});
  Cluster::Efficiency efficiency;
  const auto part = [&](const char* field, double& value) {
    parts.number(field, value);
    TORCH_CHECK_VALUE(value <= 1, where, ": `", field, "` is ", value, "; give a number of at most 1");
  };
  part("products", efficiency.products);
  part("memory", efficiency.memory);
  part("links", efficiency.links);
  parts.text("reason", efficiency.reason);
  parts.check_all_known();
  return efficiency;
}

void read_flops(CostFields& fields, Cluster& cluster) {
  CostFields flops(*fields.find("flops_per_second"), fields.path("flops_per_second"));
  flops.require({"float32"});
  read_flops_by_dtype(flops, cluster.flops_by_dtype);
  flops.number("tf32", cluster.tf32_flops);
  flops.check_all_known();
}

CostJson write_link(const LinkCost& link) {
  return {{"latency", link.latency}, {"hop_latency", link.hop_latency}, {"bandwidth", link.bandwidth}};
}

}  // namespace

CostModel Cluster::cost_model(bool tf32) const {
  TORCH_CHECK_VALUE(!tf32 || tf32_flops > 0, "[cluster] ", name,
                    " has no figure for TF32; call cost_model() without it");
  TORCH_CHECK_VALUE(flops_by_dtype.count(at::kFloat) == 1, "[cluster] ", name,
                    ": flops_by_dtype has no figure for float32, which dtypes without one take");
  CostModel model;
  model.ranks_per_node = ranks_per_node;
  model.copy_bandwidth = efficiency.memory * memory_bandwidth / 2;  // a copy reads and writes
  for (const auto& [dtype, flops] : flops_by_dtype) model.flops_by_dtype[dtype] = efficiency.products * flops;
  if (tf32) model.flops_by_dtype[at::kFloat] = efficiency.products * tf32_flops;
  model.flops_per_second = model.flops_by_dtype.at(at::kFloat);
  const auto achieved = [&](LinkCost link) {
    link.bandwidth *= efficiency.links;
    return link;
  };
  model.within_node.fill(achieved(within_node));
  model.between_nodes.fill(achieved(between_nodes));
  return model;
}

std::string Cluster::to_json() const {
  CostJson flops = write_flops_by_dtype(flops_by_dtype);
  if (tf32_flops > 0) flops["tf32"] = tf32_flops;
  const CostJson json = {{"name", name},
                         {"source", source},
                         {"ranks_per_node", ranks_per_node},
                         {"memory_bytes", memory_bytes},
                         {"memory_bandwidth", memory_bandwidth},
                         {"flops_per_second", flops},
                         {"within_node", write_link(within_node)},
                         {"between_nodes", write_link(between_nodes)},
                         {"efficiency",
                          {{"products", efficiency.products},
                           {"memory", efficiency.memory},
                           {"links", efficiency.links},
                           {"reason", efficiency.reason}}}};
  return json.dump(2) + "\n";
}

Cluster cluster_from_json(const std::string& text, const std::string& name) {
  const std::string where = "[cluster] " + name;
  const CostJson json = parse_cost_json(text, where);
  CostFields fields(json, where);
  fields.require({"name", "source", "ranks_per_node", "memory_bytes", "memory_bandwidth", "flops_per_second",
                  "within_node", "between_nodes", "efficiency"});
  Cluster cluster;
  fields.text("name", cluster.name);
  fields.text("source", cluster.source);
  fields.number("ranks_per_node", cluster.ranks_per_node);
  fields.number("memory_bytes", cluster.memory_bytes);
  fields.number("memory_bandwidth", cluster.memory_bandwidth);
  read_flops(fields, cluster);
  cluster.within_node = read_link(fields, "within_node");
  cluster.between_nodes = read_link(fields, "between_nodes");
  cluster.efficiency = read_efficiency(fields);
  fields.check_all_known();
  return cluster;
}

Cluster load_cluster(const std::string& path) {
  return cluster_from_json(read_cost_file(path, "[cluster]", "give a file as cluster(\"h100x8\").to_json() is"), path);
}

}  // namespace dtensor
