// Processes that save or load together: what each has to say, before all of them go on or none does. Internal.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/device_mesh.h"

namespace dtensor {

// All ranks of the world in a row; undefined where this process has them all, or there is no world, so that nobody is
// to be asked.
DeviceMesh ranks_of(const World& world);

// In what follows `ranks` has one dim, and its processes call together; undefined: this one is alone. `op`: who asks,
// for reports; the collectives count as explicit ones of that name.

// The `mine` of every process, in the order of the ranks. Texts may differ in length.
std::vector<std::string> gather_texts(const DeviceMesh& ranks, const std::string& mine, std::string_view op);

// Whether all processes are well. `error`: empty, or what is wrong with this one. Error (c10::Error, on every process
// alike): the first one's that is not well, "rank 3: ..." where there are several.
void agree_that_all_is_well(const DeviceMesh& ranks, const std::string& error, std::string_view op);

// Runs `work` on every process. However long it takes on one of them, the others wait as long as that lives: they
// exchange some bytes now and then, so that no deadline of the job passes meanwhile. `work` communicates nothing; where
// there are others it runs on a thread of its own. Returns how it went, the same on every process: "", or the first
// error as above. Throws only where the processes cannot talk any more, so that nobody knows.
[[nodiscard]] std::string run_on_all(const DeviceMesh& ranks, const std::function<void()>& work, std::string_view op);

}  // namespace dtensor
