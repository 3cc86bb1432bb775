// How much memory of GPUs processes hold.
#pragma once

#include <cstdint>
#include <map>

namespace dtensor::tools {

// Bytes by process, of all GPUs together, as `nvidia-smi` says; empty where there is none, or it does not answer within
// some seconds. In a container it may know processes by other numbers; those are of no use here.
std::map<int64_t, int64_t> gpu_memory_by_process();

}  // namespace dtensor::tools
