// Elementwise operators, computed in other loops. LibTorch's loops over whole vectors and over what is left of them do not
// always agree (sinh close to where it overflows, hardshrink of NaN), so what it gives depends on where in memory an
// element lies, and that is another place in a part than in the whole.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

namespace dtensor::fuzz {

enum class Loops {
  kElements,  // each element by a call of its own
  kVectors,   // each element as one of a vector's worth of its like
};

// While it lives, all elementwise operators that this thread calls give what those loops do: those of a program, those
// that others are composed of, and those of backward.
class InOtherLoops {
 public:
  explicit InOtherLoops(Loops loops);
  ~InOtherLoops();

 private:
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace dtensor::fuzz
