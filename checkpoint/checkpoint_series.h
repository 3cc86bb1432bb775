// The checkpoints of a run, a folder for each step, of which the last ones are kept.
//
//   CheckpointSeries series("run", /*keep_last=*/3);
//   if (const auto step = series.latest()) load_checkpoint(series.folder(*step), contents);
//   ...
//   series.save(step, contents);
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace dtensor {

class CheckpointSeries {
 public:
  // Error (c10::Error): keep_last < 1.
  explicit CheckpointSeries(std::string folder, int64_t keep_last = 3);

  // "run/step-0000000100", whether there is one or not. Error (c10::Error): step < 0.
  std::string folder(int64_t step) const;
  // Complete checkpoints, ascending.
  std::vector<int64_t> steps() const;
  // The last one of them; nullopt: none.
  std::optional<int64_t> latest() const;

  // save_checkpoint(), and then remove_older(step) by one process. Collective.
  void save(int64_t step, const CheckpointContents& contents, const SaveCheckpointOptions& options = {}) const;
  // Removes all but the last keep_last of the steps up to this one, and unfinished saves of earlier steps. Later steps
  // stay: a run that goes back removes them itself. For callers of save_checkpoint_async(folder(step), ...): by one
  // process, after wait(). Files that cannot be removed stay, without an error.
  void remove_older(int64_t step) const;

 private:
  std::vector<int64_t> folders() const;  // whole or not
  bool is_whole(int64_t step) const;

  std::string folder_;
  int64_t keep_last_;
};

}  // namespace dtensor
