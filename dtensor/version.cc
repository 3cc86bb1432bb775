#include "dtensor/version.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "dtensor/libtorch_version.h"

// LibTorch's own; weak, since very old releases have none.
extern "C" __attribute__((weak)) uint64_t aoti_torch_abi_version();

namespace dtensor {

namespace {

// tools/install/install.py, CMake's package and python/dtensor_torch.py look for this text in the file.
#define DTENSOR_BUILT_WITH "dtensor built with LibTorch "
constexpr char kBuiltWith[] = DTENSOR_BUILT_WITH TORCH_VERSION;

// The first of the library's initializers: those that register operators may crash with another ABI. An exception could
// not leave dlopen(), so the program ends.
__attribute__((constructor(101))) void check_libtorch() {
  const uint64_t running = aoti_torch_abi_version == nullptr ? 0 : aoti_torch_abi_version();
  if (running >> 48 == TORCH_ABI_VERSION >> 48) return;
  std::fprintf(stderr, "dtensor %s needs LibTorch %d.%d, with which it was built; this program has LibTorch %d.%d\n",
               version(), TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, int(running >> 56), int(running >> 48 & 255));
  std::_Exit(1);
}

}  // namespace

const char* version() { return "0.2.0"; }

const char* libtorch_version() { return kBuiltWith + sizeof(DTENSOR_BUILT_WITH) - 1; }

#undef DTENSOR_BUILT_WITH

}  // namespace dtensor
