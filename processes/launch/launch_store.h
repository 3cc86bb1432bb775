// The rendezvous store of a job: given by the program or the user, else derived from the launcher's variables.
#pragma once

#include "processes/launch/job_place.h"
#include "processes/launch/launch_variables.h"

namespace dtensor::internal {

// Fills in place.store, store_exists and store_derived.
// REQUIRES: the other fields. Errors (c10::Error) as find_job_place().
void find_store(const LaunchOptions& options, const LaunchVariables& read, JobPlace& place);

// LaunchOptions::store in parts: a path, or a host and a port.
// Error (c10::Error): neither form; the text begins with `what`.
struct StoreAddress {
  std::string path;
  std::string host;
  int port = 0;
};
StoreAddress parse_store(const std::string& url, const std::string& what);

}  // namespace dtensor::internal
