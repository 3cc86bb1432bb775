// Files that `calibrate` writes. A model that is written again reads as what it was, and prices are times.
#include "plan/cost_model.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto model = read_or_refuse([&] { return CostModel::from_json(text_of_input(data, size), "model.json"); });
  if (!model) return 0;
  must(CostModel::from_json(model->to_json()) == *model, "a model that is written reads as what it was");
  must(model->ranks_per_node > 0, "a node has ranks");
  const double seconds = model->collective(Collective::kAllReduce, GroupExtent::of_links(8, true), int64_t{1} << 30);
  must(seconds > 0 && model->least(1) > 0, "a collective takes time");
  return 0;
}
