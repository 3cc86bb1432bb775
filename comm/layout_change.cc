#include "comm/layout_change.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/tensor_text.h"

namespace dtensor {
using namespace internal;

LayoutChange::LayoutChange(c10::ScalarType dtype, Shape sizes, Placements from, Placements to, std::string mesh)
    : dtype_(dtype),
      sizes_(std::move(sizes)),
      from_{std::move(from), mesh},
      to_{std::move(to), std::move(mesh)},
      on_one_mesh_(true),
      text_(absl::StrCat(tensor_text(dtype_, sizes_), "(", to_string(*from_.placements), ") -> (",
                         to_string(*to_.placements), ") @ ", to_.where)) {}

LayoutChange::LayoutChange(c10::ScalarType dtype, Shape sizes, Side from, Side to)
    : dtype_(dtype),
      sizes_(std::move(sizes)),
      from_(std::move(from)),
      to_(std::move(to)),
      on_one_mesh_(false),
      text_(absl::StrCat(tensor_text(dtype_, sizes_), "(", to_string(from_), ") -> (", to_string(to_), ")")) {}

std::string to_string(const LayoutChange& change, int64_t more_tensors) {
  return more_tensors == 0 ? change.text() : absl::StrCat(change.text(), " and ", more_tensors, " more");
}

std::string to_string(const LayoutChange::Side& side) {
  return side.placements ? absl::StrCat(to_string(*side.placements), " @ ", side.where) : side.where;
}

}  // namespace dtensor
