#include "plan/cost_model.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "comm/communicator.h"

namespace dtensor {
namespace {

using Json = nlohmann::ordered_json;

int64_t ceil_log2(int64_t n) {
  int64_t steps = 0;
  for (int64_t reach = 1; reach < n; reach *= 2) ++steps;
  return steps;
}

// Reads one JSON object, and rejects unknown fields.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    TORCH_CHECK_VALUE(json.is_object(), where_, ": is ", std::string(json.type_name()), ", not an object");
  }

  void number(const char* field, double& value) {
    const Json* json = find(field);
    if (json == nullptr) return;
    TORCH_CHECK_VALUE(json->is_number() && json->get<double>() > 0 && std::isfinite(json->get<double>()), where_, ": `",
                      field, "` is ", json->dump(), "; give a number greater than 0");
    value = json->get<double>();
  }
  void number(const char* field, int64_t& value) {
    const Json* json = find(field);
    if (json == nullptr) return;
    TORCH_CHECK_VALUE(json->is_number_integer() && json->get<int64_t>() > 0, where_, ": `", field, "` is ",
                      json->dump(), "; give a whole number greater than 0");
    value = json->get<int64_t>();
  }
  void boolean(const char* field, bool& value) {
    const Json* json = find(field);
    if (json == nullptr) return;
    TORCH_CHECK_VALUE(json->is_boolean(), where_, ": `", field, "` is ", json->dump(), "; give true or false");
    value = json->get<bool>();
  }
  const Json* find(const char* field) {
    known_.emplace_back(field);
    auto it = json_.find(field);
    return it == json_.end() ? nullptr : &*it;
  }
  std::string path(const char* field) const { return where_ + "." + field; }

  // Call after all fields were read.
  void check_all_known() const {
    for (auto it = json_.begin(); it != json_.end(); ++it) {
      TORCH_CHECK_VALUE(std::find(known_.begin(), known_.end(), it.key()) != known_.end(), where_, ": unknown field `",
                        it.key(), "`; known are ", c10::Join(", ", known_));
    }
  }

 private:
  const Json& json_;
  const std::string where_;
  std::vector<std::string> known_;
};

void read_level(const Json& json, const std::string& where, CostModel::Level& level) {
  Fields collectives(json, where);
  for (int c = 0; c < kNumCollectives; ++c) {
    const std::string name(to_string(static_cast<Collective>(c)));
    const Json* link = collectives.find(name.c_str());
    if (link == nullptr) continue;
    Fields fields(*link, where + "." + name);
    fields.number("latency", level[c].latency);
    fields.number("hop_latency", level[c].hop_latency);
    fields.number("bandwidth", level[c].bandwidth);
    fields.check_all_known();
  }
  collectives.check_all_known();
}

Json write_level(const CostModel::Level& level) {
  Json json = Json::object();
  for (int c = 0; c < kNumCollectives; ++c) {
    json[std::string(to_string(static_cast<Collective>(c)))] = {
        {"latency", level[c].latency}, {"hop_latency", level[c].hop_latency}, {"bandwidth", level[c].bandwidth}};
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

std::shared_ptr<const CostModel> built_in(bool packs) {
  static const auto make = [](bool with_buffers) {
    CostModel model;
    if (const char* path = std::getenv("DTENSOR_COST_MODEL"); path != nullptr && *path != '\0') {
      model = CostModel::load(path);
    } else {
      model.packs = with_buffers;
    }
    return std::make_shared<const CostModel>(model);
  };
  static const std::shared_ptr<const CostModel> packing = make(true), reading = make(false);
  return packs ? packing : reading;
}

}  // namespace

CostModel::CostModel() {
  // A node of GPUs on one switch; between nodes one 400 Gb/s link per GPU, and a network's latency.
  between_nodes.fill({/*latency=*/15e-6, /*hop_latency=*/2e-6, /*bandwidth=*/45e9});
}

double CostModel::collective(Collective kind, int64_t group_size, bool crosses_nodes, int64_t bytes) const {
  if (group_size <= 1) return 0;
  const LinkCost& link = (crosses_nodes ? between_nodes : within_node)[static_cast<size_t>(kind)];
  int64_t hops = ceil_log2(group_size);
  if (kind == Collective::kAllReduce) hops *= 2;  // up and down
  if (kind == Collective::kPermute) hops = 1;
  return link.latency + static_cast<double>(hops) * link.hop_latency + static_cast<double>(bytes) / link.bandwidth;
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
  std::ifstream file(path);
  TORCH_CHECK_VALUE(file.good(), "[cost model] cannot read ", path, "; give the file that `calibrate` wrote");
  std::stringstream text;
  text << file.rdbuf();
  return from_json(text.str(), path);
}

CostModel CostModel::from_json(const std::string& text, const std::string& name) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& e) {
    TORCH_CHECK_VALUE(false, "[cost model] ", name, " is no JSON: ", e.what());
  }
  CostModel model;
  Fields fields(json, "[cost model] " + name);
  fields.number("ranks_per_node", model.ranks_per_node);
  fields.number("copy_bandwidth", model.copy_bandwidth);
  fields.number("flops_per_second", model.flops_per_second);
  fields.boolean("packs", model.packs);
  if (const Json* level = fields.find("within_node")) read_level(*level, fields.path("within_node"), model.within_node);
  if (const Json* level = fields.find("between_nodes"))
    read_level(*level, fields.path("between_nodes"), model.between_nodes);
  fields.check_all_known();
  return model;
}

std::string CostModel::to_json() const {
  const Json json = {{"ranks_per_node", ranks_per_node},        {"copy_bandwidth", copy_bandwidth},
                     {"flops_per_second", flops_per_second},    {"packs", packs},
                     {"within_node", write_level(within_node)}, {"between_nodes", write_level(between_nodes)}};
  return json.dump(2) + "\n";
}

std::shared_ptr<const CostModel> cost_model(const World& given) {
  const World world = given.with_data();  // the decisions for meta tensors are those with data
  ModelSlot& slot = world.attachment<ModelSlot>();
  std::lock_guard<std::mutex> lock(slot.mutex);
  if (!slot.model) slot.model = built_in(world.communicator().packs());
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
