// The releases of the library that a program runs with and of the LibTorch it was built with: those of the shared
// library, whatever headers the program was compiled with. A LibTorch of another release (major.minor) is another ABI:
// the library then ends the program while it is loaded, with a line that names both.
//
//   std::cout << "dtensor " << version() << ", LibTorch " << libtorch_version() << "\n";
#pragma once

#include <string>

namespace dtensor {

// "major.minor.patch". Static, and never null.
const char* version();

// The version of the LibTorch that the library was built with, likewise.
const char* libtorch_version();

// The kernels that LibTorch had registered at the dispatch key of distributed tensors when the library was loaded:
// "Fake: LibTorch 2.15.0 registers nothing there".
std::string describe_dispatch_key();

}  // namespace dtensor
