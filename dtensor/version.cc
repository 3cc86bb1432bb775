#include "dtensor/version.h"

namespace dtensor {

const char* version() { return "0.1.0"; }

}  // namespace dtensor
