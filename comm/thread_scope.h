// A value of the current thread that nests and follows the work: autograd's engine threads see that of the thread that
// called backward (it rides on c10::ThreadLocalDebugInfo, as ATen's own thread state does).
//
//   struct Depth { static c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO; } int depth = 0; };
//   ThreadScope<Depth>::Guard deeper([](Depth& d) { ++d.depth; });   // until the end of the block
//   ThreadScope<Depth>::current().depth;                             // 1
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <functional>
#include <memory>
#include <utility>

namespace dtensor::internal {

// T::kind() names the slot: an enumerator up to LibTorch 2.12, an object since. There is none for libraries; TEST_INFO
// and TEST_INFO_2 are free, as only ATen's own unit tests use them.
template <typename T>
class ThreadScope {
 public:
  // The innermost value of this thread; a default one if there is none.
  static const T& current() {
    static const T& none = *new T;  // leaked: other threads may look at it while the process exits
    const auto* frame = static_cast<const Frame*>(c10::ThreadLocalDebugInfo::get(T::kind()));
    return frame != nullptr ? frame->value : none;
  }

  // Copies the current value, lets `change` edit the copy, and makes it current until destruction. On one thread guards
  // end in reverse order of their making.
  class Guard {
   public:
    explicit Guard(const std::function<void(T&)>& change) {
      auto frame = std::make_shared<Frame>();
      frame->value = current();
      change(frame->value);
      c10::ThreadLocalDebugInfo::_push(T::kind(), std::move(frame));
    }
    ~Guard() { c10::ThreadLocalDebugInfo::_pop(T::kind()); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
  };

 private:
  struct Frame : c10::DebugInfoBase {
    T value;
  };
};

}  // namespace dtensor::internal
