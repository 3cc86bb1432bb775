#include "processes/job/bounded_store.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr Milliseconds kGiveUp{1000};  // how long the end waits for the store's own

[[noreturn]] void throw_lost(Milliseconds timeout) {
  C10_THROW_ERROR(DistStoreError,
                  absl::StrCat("the store at which the ranks meet has not answered within ",
                               static_cast<double>(timeout.count()) / 1000,
                               " s: the process that serves it is stopped or out of reach, or its file is locked"));
}

// False: it must be left behind. The destructor of a FileStore writes to the file, and ends the process where it
// cannot, as on a full disk.
bool may_be_destroyed(c10d::Store& store) {
  auto* prefix = dynamic_cast<c10d::PrefixStore*>(&store);
  const StorePtr underlying = prefix != nullptr ? prefix->getUnderlyingNonPrefixStore() : StorePtr();
  const auto* file = dynamic_cast<c10d::FileStore*>(underlying ? underlying.get() : &store);
  if (file == nullptr || access(file->getPath().c_str(), F_OK) != 0) return true;  // without a file it writes nothing
  try {
    store.add("end", 0);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

}  // namespace

// The thread that calls the store. It may be in a call that never ends; then it and the store are left behind.
class BoundedStore::Caller : public std::enable_shared_from_this<Caller> {
 public:
  explicit Caller(StorePtr store) : store_(std::move(store)) {}

  void start() {
    std::thread([self = shared_from_this()] { self->serve(); }).detach();
  }

  // Returns when `body` has run. `body` owns what it uses, as it may be left behind.
  void run(std::function<void(StorePtr&)> body, Milliseconds timeout) {
    if (::getpid() != process_) throw_lost(timeout);  // a fork has no thread, and the mutex may be locked for ever
    const auto task = std::make_shared<Task>(Task{std::move(body), {}, false});
    std::unique_lock lock(mutex_);
    if (lost_) throw_lost(timeout);
    tasks_.push_back(task);
    changed_.notify_all();
    changed_.wait_for(lock, timeout, [&] { return task->done || lost_; });
    if (!task->done) {
      lost_ = true;
      tasks_.clear();
      changed_.notify_all();
      throw_lost(timeout);
    }
    if (task->error) std::rethrow_exception(task->error);
  }

  void stop(Milliseconds at_most) {
    if (::getpid() != process_) return;
    std::unique_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, lost_ ? Milliseconds(0) : at_most, [&] { return ended_; });
  }

 private:
  struct Task {
    std::function<void(StorePtr&)> body;
    std::exception_ptr error;
    bool done;
  };

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) break;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task->body(store_);
      } catch (c10::Error& e) {
        e.add_context("from the store at which the ranks meet");
        task->error = std::current_exception();
      } catch (...) {
        task->error = std::current_exception();
      }
      lock.lock();
      task->done = true;
      lost_ = false;
      changed_.notify_all();
    }
    lock.unlock();
    if (!may_be_destroyed(*store_)) store_.release();
    store_.reset();  // which may call it, too
    lock.lock();
    ended_ = true;
    changed_.notify_all();
  }

  const pid_t process_ = ::getpid();
  StorePtr store_;    // of its thread alone
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;
  bool lost_ = false;  // a call was given up, and has not come back
  bool stop_ = false, ended_ = false;
};

BoundedStore::BoundedStore(StorePtr store, Milliseconds timeout, Check check, const std::string& prefix)
    : c10d::Store(timeout),
      check_(std::move(check)),
      caller_(std::make_shared<Caller>(
          prefix.empty() ? std::move(store) : StorePtr(c10::make_intrusive<c10d::PrefixStore>(prefix, store)))) {
  caller_->start();
}

BoundedStore::~BoundedStore() { caller_->stop(std::min(timeout_, kGiveUp)); }

template <typename Body>
auto BoundedStore::call(Body body) const {
  using Result = decltype(body(*std::declval<StorePtr&>()));
  if (check_) check_();
  auto result = std::make_shared<std::optional<Result>>();
  caller_->run([result, body = std::move(body)](StorePtr& store) { *result = body(*store); }, timeout_);
  return *std::move(*result);
}

c10::intrusive_ptr<BoundedStore> BoundedStore::under(const std::string& prefix, Check check) const {
  Check both = check_;
  if (check) {
    both = [first = check_, second = std::move(check)] {
      if (first) first();
      second();
    };
  }
  return c10::make_intrusive<BoundedStore>(unbounded(), timeout_, std::move(both), prefix);
}

StorePtr BoundedStore::unbounded() const {
  return call([](c10d::Store& store) { return store.clone(); });
}

void BoundedStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  call([=](c10d::Store& store) {
    store.set(key, value);
    return true;
  });
}

std::vector<uint8_t> BoundedStore::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                              const std::vector<uint8_t>& desired) {
  return call([=](c10d::Store& store) { return store.compareSet(key, expected, desired); });
}

std::vector<uint8_t> BoundedStore::get(const std::string& key) {
  wait({key});
  return call([=](c10d::Store& store) { return store.get(key); });
}

int64_t BoundedStore::add(const std::string& key, int64_t value) {
  return call([=](c10d::Store& store) { return store.add(key, value); });
}

bool BoundedStore::deleteKey(const std::string& key) {
  return call([=](c10d::Store& store) { return store.deleteKey(key); });
}

bool BoundedStore::check(const std::vector<std::string>& keys) {
  return call([=](c10d::Store& store) { return store.check(keys); });
}

int64_t BoundedStore::getNumKeys() {
  return call([](c10d::Store& store) { return store.getNumKeys(); });
}

void BoundedStore::wait(const std::vector<std::string>& keys, const Milliseconds& timeout) {
  const auto until = Clock::now() + (timeout == kNoTimeout ? timeout_ : std::min(timeout, timeout_));
  Milliseconds pause{1};
  while (!check(keys)) {
    if (Clock::now() >= until) {
      C10_THROW_ERROR(DistStoreError,
                      absl::StrCat("no rank has set ", keys.empty() ? "" : keys[0], " at the store within ",
                                   static_cast<double>(timeout_.count()) / 1000, " s"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, Milliseconds(10));
  }
}

c10::intrusive_ptr<BoundedStore> make_bounded_store(StorePtr store, Milliseconds timeout) {
  if (auto* bounded = dynamic_cast<BoundedStore*>(store.get())) {
    return c10::intrusive_ptr<BoundedStore>::reclaim_copy(bounded);
  }
  return c10::make_intrusive<BoundedStore>(std::move(store), timeout);
}

}  // namespace dtensor::internal
