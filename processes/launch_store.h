// Where the ranks of a job meet: given by the program or the user, else derived from what the launcher tells. Internal.
#pragma once

#include "processes/launch_env.h"
#include "processes/launch_variables.h"

namespace dtensor {

// Fills in place.store, store_exists and store_derived. REQUIRES: the other fields. Errors (c10::Error) as find_job_place().
void find_store(const LaunchOptions& options, const LaunchVariables& read, JobPlace& place);

}  // namespace dtensor
