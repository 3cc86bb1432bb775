// Runs callbacks when this process ends by exit(), by a return from main or by std::quick_exit, while worlds are alive:
// their destructors would run too late, or not at all.
#pragma once

#include <functional>

namespace dtensor::internal {

// `callback` is called once, before static objects that are older are destroyed; the last one added comes first. It
// must not throw, and not take long. `owner`: of remove_end_callback(), which must come before the end of what the
// callback refers to, and waits for it if it is running. A fork's child calls none that its parent added. Thread-safe.
void add_end_callback(const void* owner, std::function<void()> callback);
void remove_end_callback(const void* owner);

// Called by a thread that is about to end the process by std::terminate. If another one is in exit() already, the
// exception of this one does not matter any more: does not return then. Should exit() wait for this thread, the process
// ends after a minute, with the requested status (1 where that was by quick_exit), and nothing more is flushed.
void yield_to_exit();

// False where the process is ending with another status than 0, or by quick_exit, whose status is not known.
bool may_exit_with_0();
// From now on the process ends with 1 where it would end with 0, by exit() or a return from main.
void deny_exit_with_0();

}  // namespace dtensor::internal
