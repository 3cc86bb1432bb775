// One collective of a redistribution in chunks: several asynchronous collectives, each of some rows of every rank. For
// operators that compute with the rows of one chunk while those of another travel.
//
// Below autograd, on plain tensors, like the executor. All chunks together move the blocks and the bytes that the plan
// moves at once. All ranks make the same calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/comm_event.h"
#include "comm/comm_work.h"
#include "comm/rank_tensors.h"
#include "placement/geometry.h"
#include "plan/redistribute_plan.h"
#include "plan/transfer/schedule.h"

namespace dtensor::internal {

// How the rows of every rank are cut: into `chunks` pieces along the tensor dim `dim`.
struct ChunkCut {
  int64_t dim = 0;
  int64_t chunks = 1;
};

// Along the first dim that is at least `max_chunks` long on a rank; if there is none, along the dim that the plan
// gathers or scatters, into as many chunks as a rank has rows. The last dim, the features, is not cut. The same on all
// ranks. nullopt: the plan is something else than one all_gather, or one reduce_scatter of a sum, of a dim before the
// last over one mesh dim; or there would be one chunk.
std::optional<ChunkCut> cut_into_chunks(const RedistributePlan& plan, int64_t max_chunks);

class ChunkedExchange {
 public:
  // `inputs`: one per owned rank, as of run_plan(); those of a reduce_scatter may be filled in later. Sends nothing.
  // REQUIRES: cut_into_chunks() gave `cut`.
  ChunkedExchange(std::shared_ptr<const RedistributePlan> plan, ChunkCut cut, RankTensors inputs, CommCause cause);

  // The results, with the rows of the chunks that were waited for.
  const RankTensors& outputs() const { return outputs_; }
  // Of the i-th owned rank's tensor that has all rows of its group (the result of an all_gather, the input of a
  // reduce_scatter): those of chunk `k`, along the dim of the cut.
  std::vector<IndexRange> rows(size_t i, int64_t k) const;

  // Reads the chunk's rows of the inputs and sends them. Once per chunk.
  void begin(int64_t k);
  // Returns when the rows of chunk `k`, which has begun, have arrived. Errors: those of the collective.
  void wait(int64_t k) const;

 private:
  bool gathers() const { return plan_->steps[0].kind == RedistributeStep::Kind::kAllGather; }
  const StepSchedule& step() const { return schedule_->steps[0]; }
  // The chunk's piece of `size` rows.
  IndexRange piece(int64_t size, int64_t k) const;

  std::shared_ptr<const RedistributePlan> plan_;
  std::shared_ptr<const PlanSchedule> schedule_;
  ChunkCut cut_;
  CommCause cause_;
  RankTensors inputs_, outputs_;
  std::vector<std::vector<IndexRange>> blocks_;   // per owned rank, of the tensor that has all rows
  std::vector<std::shared_ptr<CommWork>> works_;  // null: not begun, or there at once
};

}  // namespace dtensor::internal
