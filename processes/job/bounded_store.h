// A store of which no call waits longer than a deadline.
//
// c10d's stores wait without one: for a lock of a file, for the answer of a server that is stopped. So every call runs
// on a thread that can be left behind. A Job makes all of its calls through this.
//
//   auto bounded = make_bounded_store(file_store, std::chrono::seconds(30));
//   bounded->set("key", "value");  // done, or an error, after 30 s at most
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace dtensor::internal {

class BoundedStore : public c10d::Store {
 public:
  // Called before every call, and again and again by those that wait for a key. What it throws is the call's error.
  using Check = std::function<void()>;

  // `prefix`: put before all keys; "" for none. What else uses `store` may have to wait for a call that is left behind.
  BoundedStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout, Check check = {},
               const std::string& prefix = "");
  // Gives the store up on the thread that uses it, and waits for that a second at most.
  ~BoundedStore() override;

  // A view of the same store with a thread of its own, so that neither waits for the other's calls. `check` is called
  // in addition to this one's.
  c10::intrusive_ptr<BoundedStore> under(const std::string& prefix, Check check = {}) const;
  c10::intrusive_ptr<c10d::Store> clone() override { return under(""); }
  c10::intrusive_ptr<c10d::Store> unbounded() const;  // a clone of the underlying store

  // Errors: those of the store; c10::DistStoreError after getTimeout(), at once while an earlier call that was given up
  // has not come back. get() and wait() wait for their keys, the others for the store alone.
  using c10d::Store::compareSet;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  class Caller;

  // Runs `body` with the store on the thread.
  template <typename Body>
  auto call(Body body) const;

  const Check check_;
  const std::shared_ptr<Caller> caller_;  // shared with its thread
};

// `store` itself if it is one.
c10::intrusive_ptr<BoundedStore> make_bounded_store(c10::intrusive_ptr<c10d::Store> store,
                                                    std::chrono::milliseconds timeout);

}  // namespace dtensor::internal
