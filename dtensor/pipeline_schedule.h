// In which order the stages of a pipeline compute forward and backward of the micro-batches of one step. A value, pure:
// no process, no tensor, the same on every rank.
//
//   const auto schedule = one_f_one_b_schedule(/*ranks=*/4, /*micro_batches=*/8);
//   std::cout << schedule.to_string();                    // a picture: a row for each pipeline rank, time to the right
//   schedule.simulate({.forward = 1, .backward = 2}).bubble;   // share of the time in which a rank waits
//
// A backward may be split: the gradient of the stage's input first, for which the stage before waits, and those of its
// parameters at any time after it.
//
// A pipeline rank is one position along the pipeline: the ranks of one stage's mesh. Stage s is on pipeline rank
// s % ranks. Sources: Huang et al., GPipe, NeurIPS 2019; Narayanan et al., Efficient Large-Scale Language Model
// Training on GPU Clusters Using Megatron-LM, SC 2021; torch.distributed.pipelining.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

struct PipelineAction {
  enum class Kind {
    kForward,
    kBackward,        // of input and parameters
    kBackwardInput,   // of the input only
    kBackwardWeight,  // of the parameters, after kBackwardInput
  };
  Kind kind = Kind::kForward;
  int64_t stage = 0, micro_batch = 0;

  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

// In any unit of time.
struct PipelineTimes {
  double forward = 1;                              // of one micro-batch in one stage
  double backward = 2;                             // likewise
  double backward_input = 1, backward_weight = 1;  // the parts of a split one
  double transfer = 0;                             // of one activation or gradient between two pipeline ranks
};

struct PipelineTimeline {
  struct Span {
    PipelineAction action;
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> ranks;  // per pipeline rank
  double seconds = 0;                    // until the last action ends
  double bubble = 0;                     // 1 - work / (ranks * seconds)

  // As a picture: a row for each pipeline rank, and a colour for each kind of action.
  std::string to_svg() const;
};

struct PipelineSchedule {
  std::string name;  // "1F1B"
  int64_t num_ranks = 0, num_stages = 0, num_micro_batches = 0;
  std::vector<std::vector<PipelineAction>> actions;  // per pipeline rank, in its order

  int64_t rank_of(int64_t stage) const { return stage % num_ranks; }

  // When each action runs. Errors (ValueError): a negative time; the ranks would wait for one another forever, or an
  // action is missing, twice, or on the wrong rank; the text names it.
  PipelineTimeline simulate(const PipelineTimes& times = {}) const;
  // All actions by the time at which they begin, with ties by rank: an order in which one program can run them all.
  std::vector<PipelineAction> order() const;
  // Activations that `rank` holds at most: those of micro-batches whose forward has run in a stage and whose backward
  // has not, or not with the parameters' part, counted for each of its stages. Error (ValueError): no such rank.
  int64_t peak_in_flight(int64_t rank) const;
  // A row for each pipeline rank: "F0 F1 .  B0"; forward one column wide and backward two, '.' for waiting. The parts
  // of a split backward are "I0" and "W0", one column each. With several stages on a rank, "F0.2" is micro-batch 2 in
  // the rank's first stage.
  std::string to_string() const;
};

// Errors of all (ValueError): a number below 1.

// All forwards, then all backwards.
PipelineSchedule gpipe_schedule(int64_t ranks, int64_t micro_batches);
// One forward, one backward in turns as soon as possible: waits as long as GPipe, with at most `ranks` micro-batches in
// flight.
PipelineSchedule one_f_one_b_schedule(int64_t ranks, int64_t micro_batches);
// 1F1B with several stages on each rank, which waits less by that factor and transfers more by it. Error: micro_batches
// is not a multiple of ranks.
PipelineSchedule interleaved_schedule(int64_t ranks, int64_t stages_per_rank, int64_t micro_batches);
// 1F1B with split backwards (ZB-H1): rank r computes the gradients of its parameters r micro-batches later, in which
// time it would wait. With micro_batches >= ranks, and a weight part not longer than the input part, a rank waits
// (ranks - 1) * (forward + backward_input - backward_weight), a third of 1F1B if all take equally long. Every rank
// holds min(ranks, micro_batches) micro-batches, as many as the first rank of 1F1B.
PipelineSchedule zero_bubble_schedule(int64_t ranks, int64_t micro_batches);

// One of these by its name: "GPipe", "1F1B", "interleaved 1F1B" or "ZB-H1". Errors, besides those above: no such name;
// stages_per_rank is not 1 for another than the interleaved one.
PipelineSchedule make_pipeline_schedule(const std::string& name, int64_t ranks, int64_t stages_per_rank,
                                        int64_t micro_batches);

namespace internal {

// Why make_pipeline_schedule() would refuse these, without making the schedule; "": it would not. REQUIRES: numbers of
// at least 1.
std::string pipeline_schedule_fault(const std::string& name, int64_t ranks, int64_t stages_per_rank,
                                    int64_t micro_batches);

}  // namespace internal

}  // namespace dtensor
