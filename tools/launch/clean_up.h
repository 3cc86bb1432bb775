// How a launch ends: without children, and without its folder.
#pragma once

#include <string>

namespace dtensor::launch {

// Kills and awaits this process's children, and their children where this process is a subreaper.
void stop_children();
// With the files in it.
void remove_folder(const std::string& folder);
// "launch: WHAT: what errno says", and exit code 1.
[[noreturn]] void die(const std::string& what);

}  // namespace dtensor::launch
