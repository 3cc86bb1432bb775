// When the operators and collectives of a predicted step run on one rank, and how much memory is alive meanwhile, as a
// picture.
//
//   const StepTimeline timeline = predict_timeline(step, mesh.world());
//   std::ofstream("step.svg") << timeline.to_svg();
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/step_prediction.h"

namespace dtensor {

// One operator or collective.
struct StepSpan {
  enum class Kind { kProduct, kOperator, kCollective };
  Kind kind = Kind::kOperator;
  std::string name;         // "aten::mm", "all_reduce(tp)"
  std::string module_path;  // of matrix products and collectives; "": none
  bool backward = false;
  double begin = 0, end = 0;   // seconds from the beginning of the step
  int64_t peak_bytes = 0;      // alive at most since the span before, as World::memory() counts
  int64_t gathered_bytes = 0;  // of parameters that fully_shard() has gathered then
  bool beside = false;         // a collective that goes on while the next spans run
};

struct StepTimeline {
  StepPrediction step;
  // In the order in which the program calls them, those beside operators begin later where others are under way.
  // Without views.
  std::vector<StepSpan> spans;

  // Above, memory over time, with its peak and the operator at which it is; below, the spans, forward and the
  // optimizer in one row, backward in another, and collectives beside them in a third, in a colour for each kind, with
  // name, module and time where the pointer is.
  std::string to_svg() const;
};

}  // namespace dtensor
