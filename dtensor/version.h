#pragma once

namespace dtensor {

// The library's release, "major.minor.patch".
const char* version();

}  // namespace dtensor
