// One process of a job writes a file, and all of them learn how that went.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace dtensor::internal {

// Runs `prepare` (null: nothing) here and `write` on the lowest of the ranks that hold the distributed tensors among
// `tensors`. These ranks' processes call it together; where there are no distributed tensors, or one process has all
// ranks, both just run here, without communication.
//
// Returns, everywhere, when the file at `path` is complete. Error, everywhere: the error of either function on any
// rank, with the rank. The others wait as long as the writer lives and writes, however long the disk takes
// (run_on_all() in agreement.h).
void write_once(const std::vector<at::Tensor>& tensors, const std::string& path, const std::function<void()>& prepare,
                const std::function<void()>& write);

}  // namespace dtensor::internal
