// Layouts as texts: what to_string() writes of a layout reads as the layout. The first byte is the dims of a tensor.
#include <algorithm>

#include "placement/parse_placements.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const int64_t ndim = data[0] % 6;
  const auto layout = parse_placements(text_of_input(data + 1, size - 1));
  if (!layout.ok()) {
    must(layout.status().message().find('\n') == absl::string_view::npos, "an error is one line");
    return 0;
  }
  const auto again = parse_placements(to_string(*layout));
  must(again.ok() && *again == *layout, "a layout that is written reads as what it was");
  const auto normal = normalize_placements(*layout, ndim);
  if (!normal.ok()) return 0;
  must(normal->size() == layout->size() &&
           std::all_of(normal->begin(), normal->end(),
                       [&](const Placement& p) { return !p.is_sharded() || (p.dim() >= 0 && p.dim() < ndim); }),
       "a normal layout shards dims of the tensor");
  const auto twice = normalize_placements(*normal, ndim);
  must(twice.ok() && *twice == *normal, "a normal layout is one already");
  return 0;
}
