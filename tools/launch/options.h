// The options of tools/launch.
#pragma once

#include <string>
#include <vector>

namespace dtensor::launch {

struct Options {
  int ranks = 0;
  double grace = 3, timeout = 0;  // seconds; timeout 0: none
  int max_restarts = 0;
  std::string log_folder;  // absolute; "" for none
  std::vector<std::string> command;
  std::string folder;  // private, for the store's files
};

// From the command line. Writes help, or what is wrong, and ends the process where that is all there is to do.
Options parse_options(int argc, char** argv);

}  // namespace dtensor::launch
