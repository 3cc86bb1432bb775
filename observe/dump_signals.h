// Signals on which a process writes down its state.
#pragma once

namespace dtensor::internal {

// From now on SIGUSR1 runs `dump`, and SIGTERM runs it and then ends the process as it would have done; a second
// SIGTERM ends it at once. `dump` runs on a thread of its own, so it may do anything. A signal that has a handler, or
// is ignored, is left as it is. Only the first call counts, and the first in a fork's child. Thread-safe.
void dump_on_signals(void (*dump)()) noexcept;

}  // namespace dtensor::internal
