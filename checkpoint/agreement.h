// Processes that save or load together: they exchange their status before all of them continue or none does.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "dtensor/gather_texts.h"

namespace dtensor::internal {

// `ranks` and `op` are those of gather_texts().

// Whether no process has an error. `error`: empty, or this process's error. Error (c10::Error, on every process alike):
// the first one's, with "rank 3: ..." if there are several processes.
void agree_that_all_is_well(const DeviceMesh& ranks, const std::string& error, std::string_view op);

// Runs `work` on every process. However long it takes on one of them, the others wait as long as that process lives:
// they exchange some bytes from time to time, so that no deadline of the job passes meanwhile. `work` communicates
// nothing; with several processes it runs on a separate thread. Returns the outcome, the same on every process: "", or
// the first error as above. Throws only if the processes cannot communicate any more, so that the outcome is unknown.
[[nodiscard]] std::string run_on_all(const DeviceMesh& ranks, const std::function<void()>& work, std::string_view op);

}  // namespace dtensor::internal
