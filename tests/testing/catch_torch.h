// Catch2 for files that also use LibTorch; include it last. c10's glog-style CHECK family and Catch2's clash: c10's is
// undefined here, so a torch header that uses it must have been included before.
#pragma once

#include <c10/util/Logging.h>

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LE
#undef CHECK_LT
#undef CHECK_GE
#undef CHECK_GT
#undef FAIL
#undef INFO
#undef WARN

#include "tests/testing/catch2.h"
