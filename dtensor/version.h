// Which release of the library a program runs with: that of the shared library, whatever headers it was compiled with.
//
//   std::cout << "dtensor " << version() << "\n";
#pragma once

namespace dtensor {

// "major.minor.patch". Static, and never null.
const char* version();

}  // namespace dtensor
