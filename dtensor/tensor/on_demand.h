// A member that few objects need.
#pragma once

#include <atomic>
#include <memory>

namespace dtensor::internal {

// A T that is allocated when it is first to be changed: until then it takes 8 bytes, and reads as a new T. T's default
// constructor is constexpr.
template <typename T>
class OnDemand {
 public:
  OnDemand() = default;
  ~OnDemand() {
    if (T* made = if_made()) destroy(made);
  }
  OnDemand(const OnDemand&) = delete;
  OnDemand& operator=(const OnDemand&) = delete;

  // Null: not made yet.
  T* if_made() { return made_.load(std::memory_order_acquire); }
  const T* if_made() const { return made_.load(std::memory_order_acquire); }
  const T& operator*() const {
    const T* made = if_made();
    return made == nullptr ? kNew.value : *made;
  }
  const T* operator->() const { return &**this; }
  // To change it. Makes it where it is not made yet; several threads may call this at once.
  T& make() {
    T* present = if_made();
    if (present != nullptr) return *present;
    auto made = std::make_unique<T>();
    return made_.compare_exchange_strong(present, made.get()) ? *made.release() : *present;
  }

 private:
  [[gnu::noinline]] static void destroy(T* made) { delete made; }  // seldom needed: kept out of the callers' code

  // Is never destroyed: static tensors may outlive all other objects.
  union Immortal {
    constexpr Immortal() : value() {}
    ~Immortal() {}
    T value;
  };
  static constinit inline const Immortal kNew{};
  std::atomic<T*> made_{nullptr};
};

}  // namespace dtensor::internal
