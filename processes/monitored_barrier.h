// A barrier that names the ranks which do not come, all of them, and after which the job can go on. It goes through the
// place where the ranks meet, not through a backend: for where a program may wait long, before or after what each rank
// does on its own, not for every step.
//
//   monitored_barrier(mesh, std::chrono::seconds(60));  // after each rank has prepared its data
#pragma once

#include <chrono>

#include "mesh/device_mesh.h"

namespace dtensor {

// Returns when all ranks of `mesh` have come to it, in programs on hosts; what they have put on devices may still run.
// `timeout`: from when this rank comes; 0: the deadline of the job. What comes within two seconds, or a tenth, of that
// deadline is taken for so much less, so that the barrier is decided before the job fails. All ranks of the mesh call
// it, as often. Ranks outside of the mesh, and worlds that are not of processes, do nothing. Errors: c10::ValueError,
// `timeout` is negative or beyond the job's deadline. c10::DistError,
//  * some ranks have not come in time: every rank of the mesh gets the same text with all of them, late ones as soon as
//    they come. The job does not fail by it: call the barrier again, go on, or end.
//  * the job has failed, as in any collective; that a rank's process is gone fails it within one or two seconds. If the place
//    where the ranks meet has not answered when `timeout` is over, the job fails, a few seconds later at most, with the
//    rank of this host whose process is stopped, if there is one.
// Thread-safe, but not in two threads for the same ranks at once.
void monitored_barrier(const DeviceMesh& mesh, std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

}  // namespace dtensor
