#include "plan/cost_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "comm/communicator.h"
#include "plan/cost_json.h"

namespace dtensor {
using namespace internal;

namespace {

int64_t ceil_log2(int64_t n) {
  int64_t steps = 0;
  for (int64_t reach = 1; reach < n; reach *= 2) ++steps;
  return steps;
}

void read_level(const CostJson& json, const std::string& where, CostModel::Level& level) {
  CostFields collectives(json, where);
  for (int c = 0; c < kNumCollectives; ++c) {
    const std::string name(to_string(static_cast<Collective>(c)));
    const CostJson* link = collectives.find(name.c_str());
    if (link == nullptr) continue;
    CostFields fields(*link, where + "." + name);
    fields.number("latency", level[c].latency);
    fields.number("hop_latency", level[c].hop_latency);
    fields.number("bandwidth", level[c].bandwidth);
    fields.check_all_known();
  }
  collectives.check_all_known();
}

CostJson write_level(const CostModel::Level& level) {
  CostJson json = CostJson::object();
  for (int c = 0; c < kNumCollectives; ++c) {
    json[std::string(to_string(static_cast<Collective>(c)))] = {
        {"latency", level[c].latency}, {"hop_latency", level[c].hop_latency}, {"bandwidth", level[c].bandwidth}};
  }
  return json;
}

OperatorTimes read_operators(const CostJson& json, const std::string& where) {
  TORCH_CHECK_VALUE(json.is_object(), where, ": is ", std::string(json.type_name()), ", not an object");
  OperatorTimes times;
  for (const auto& [name, row] : json.items()) {
    std::vector<OperatorTime>& to = times[name];
    TORCH_CHECK_VALUE(row.is_array(), where, ".", name, ": is ", row.dump(), "; give pairs of amount and seconds");
    for (const CostJson& pair : row) {
      TORCH_CHECK_VALUE(pair.is_array() && pair.size() == 2 && pair[0].is_number() && pair[1].is_number(), where, ".",
                        name, ": has ", pair.dump(), "; give pairs of amount and seconds, such as [4096, 3e-6]");
      to.push_back({pair[0].get<double>(), pair[1].get<double>()});
    }
  }
  return times;
}

CostJson write_operators(const OperatorTimes& times) {
  CostJson json = CostJson::object();
  for (const auto& [name, row] : times) {
    CostJson& pairs = json[name] = CostJson::array();
    for (const OperatorTime& time : row) pairs.push_back({time.amount, time.seconds});
  }
  return json;
}

// Times that are not numbers could not be compared.
void check_numbers(const CostModel& model) {
  const auto check = [](bool good, const std::string& field, auto value, const char* least) {
    TORCH_CHECK_VALUE(good, "[set_cost_model] `", field, "` is ", value, "; give a number ", least);
  };
  check(model.ranks_per_node > 0, "ranks_per_node", model.ranks_per_node, "greater than 0");
  check(model.copy_bandwidth > 0, "copy_bandwidth", model.copy_bandwidth, "greater than 0");
  check(model.flops_per_second > 0, "flops_per_second", model.flops_per_second, "greater than 0");
  for (const auto& [dtype, flops] : model.flops_by_dtype)
    check(flops > 0, c10::str("flops_by_dtype[", c10::toString(dtype), "]"), flops, "greater than 0");
  check(model.operator_latency >= 0 && std::isfinite(model.operator_latency), "operator_latency",
        model.operator_latency, "of at least 0");
  check_operator_times(model.operators, "[set_cost_model]");
  for (const auto& [name, level] :
       {std::pair("within_node", &model.within_node), std::pair("between_nodes", &model.between_nodes)}) {
    for (int c = 0; c < kNumCollectives; ++c) {
      const LinkCost& link = (*level)[c];
      const std::string of = c10::str(name, ".", to_string(static_cast<Collective>(c)), ".");
      check(link.latency >= 0, of + "latency", link.latency, "of at least 0");
      check(link.hop_latency >= 0, of + "hop_latency", link.hop_latency, "of at least 0");
      check(link.bandwidth > 0, of + "bandwidth", link.bandwidth, "greater than 0");
    }
  }
}

// A world's model, made on first use.
struct ModelSlot {
  std::mutex mutex;
  std::shared_ptr<const CostModel> model;
};

std::shared_ptr<const CostModel> built_in(bool uses_staging_buffers) {
  static const auto make = [](bool with_buffers) {
    CostModel model;
    if (const char* path = std::getenv("DTENSOR_COST_MODEL"); path != nullptr && *path != '\0') {
      model = CostModel::load(path);
    } else {
      model.uses_staging_buffers = with_buffers;
    }
    return std::make_shared<const CostModel>(model);
  };
  static const std::shared_ptr<const CostModel> packing = make(true), reading = make(false);
  return uses_staging_buffers ? packing : reading;
}

}  // namespace

double links_of(Collective kind, const GroupExtent& group) {
  const bool in_rings =
      kind == Collective::kAllGather || kind == Collective::kReduceScatter || kind == Collective::kAllReduce;
  return in_rings ? static_cast<double>(group.on_node) : 1;
}

CostModel::CostModel() {
  // A node of GPUs on one switch; between nodes one 400 Gb/s link per GPU, and a network's latency.
  between_nodes.fill({/*latency=*/15e-6, /*hop_latency=*/2e-6, /*bandwidth=*/45e9});
}

double CostModel::collective(Collective kind, const GroupExtent& group, int64_t bytes) const {
  if (group.size <= 1) return 0;
  const LinkCost &near = within_node[static_cast<size_t>(kind)], &far = between_nodes[static_cast<size_t>(kind)];
  int64_t hops = ceil_log2(group.size);
  if (kind == Collective::kAllReduce) hops *= 2;  // up and down
  if (kind == Collective::kPermute) hops = 1;
  const auto count = static_cast<double>(hops), received = static_cast<double>(bytes);
  if (!group.crosses_nodes()) return near.latency + count * near.hop_latency + received / near.bandwidth;
  const double together = std::min(links_of(kind, group) * far.bandwidth, near.bandwidth);
  return far.latency + count * far.hop_latency + received / std::max(together, far.bandwidth);
}

double CostModel::products(double flops, c10::ScalarType dtype) const {
  const auto found = flops_by_dtype.find(dtype);
  return flops / (found == flops_by_dtype.end() ? flops_per_second : found->second);
}

double CostModel::least(int64_t bytes) const {
  double least_latency = within_node[0].latency;
  double best_bandwidth = within_node[0].bandwidth;
  for (const Level* level : {&within_node, &between_nodes}) {
    for (const LinkCost& link : *level) {
      least_latency = std::min(least_latency, link.latency);
      best_bandwidth = std::max(best_bandwidth, link.bandwidth);
    }
  }
  return least_latency + static_cast<double>(bytes) / best_bandwidth;
}

CostModel CostModel::load(const std::string& path) {
  return from_json(read_cost_file(path, "[cost model]", "give the file that `calibrate` wrote"), path);
}

CostModel CostModel::from_json(const std::string& text, const std::string& name) {
  const CostJson json = parse_cost_json(text, "[cost model] " + name);
  CostModel model;
  CostFields fields(json, "[cost model] " + name);
  fields.number("ranks_per_node", model.ranks_per_node);
  fields.number("copy_bandwidth", model.copy_bandwidth);
  fields.number("flops_per_second", model.flops_per_second);
  if (const CostJson* json_flops = fields.find("flops_by_dtype")) {
    CostFields flops(*json_flops, fields.path("flops_by_dtype"));
    read_flops_by_dtype(flops, model.flops_by_dtype);
    flops.check_all_known();
  }
  fields.number_or_zero("operator_latency", model.operator_latency);
  if (const CostJson* times = fields.find("operators")) {
    model.operators = read_operators(*times, fields.path("operators"));
    check_operator_times(model.operators, "[cost model] " + name + ":");
  }
  fields.boolean("uses_staging_buffers", model.uses_staging_buffers);
  if (const CostJson* level = fields.find("within_node"))
    read_level(*level, fields.path("within_node"), model.within_node);
  if (const CostJson* level = fields.find("between_nodes"))
    read_level(*level, fields.path("between_nodes"), model.between_nodes);
  fields.check_all_known();
  return model;
}

std::string CostModel::to_json() const {
  const CostJson json = {{"ranks_per_node", ranks_per_node},
                         {"copy_bandwidth", copy_bandwidth},
                         {"flops_per_second", flops_per_second},
                         {"flops_by_dtype", write_flops_by_dtype(flops_by_dtype)},
                         {"operator_latency", operator_latency},
                         {"operators", write_operators(operators)},
                         {"uses_staging_buffers", uses_staging_buffers},
                         {"within_node", write_level(within_node)},
                         {"between_nodes", write_level(between_nodes)}};
  return json.dump(2) + "\n";
}

std::shared_ptr<const CostModel> cost_model(const World& given) {
  const World world = given.with_data();  // the decisions for meta tensors are those with data
  ModelSlot& slot = world.attachment<ModelSlot>();
  std::lock_guard<std::mutex> lock(slot.mutex);
  if (!slot.model) slot.model = built_in(world.communicator().uses_staging_buffers());
  return slot.model;
}

void set_cost_model(const World& world, const CostModel& model) {
  check_numbers(model);
  ModelSlot& slot = world.attachment<ModelSlot>();
  {
    std::lock_guard<std::mutex> lock(slot.mutex);
    slot.model = std::make_shared<const CostModel>(model);
  }
  world.release_caches();
}

}  // namespace dtensor
