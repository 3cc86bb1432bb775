#include "processes/launch/held_stores.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "processes/job/process_end.h"
#include "processes/launch/store_file.h"

namespace dtensor::internal {
namespace {

class HeldStores {
 public:
  // Never destroyed: other threads may go on while the process exits.
  static HeldStores& instance() {
    static auto* held = new HeldStores;
    return *held;
  }

  void hold_until_exit(const StoreFile& file, c10::intrusive_ptr<BoundedStore> store) {
    std::lock_guard lock(mutex_);
    auto& known = until_exit_[file.path()];
    if (known.inode == file.remembered()) return;
    // The file was removed and made again: the destructor of the old one's store would lower the count of the new one.
    if (known.store) for_good_.push_back(std::move(known.store));
    known = {file.remembered(), std::move(store)};
  }

  void hold_for_good(c10::intrusive_ptr<BoundedStore> store) {
    std::lock_guard lock(mutex_);
    for_good_.push_back(std::move(store));
  }

 private:
  struct OfFile {
    uint64_t inode = 0;
    c10::intrusive_ptr<BoundedStore> store;
  };

  HeldStores() {
    add_end_callback(this, [this] {
      std::map<std::string, OfFile> ending;
      std::lock_guard lock(mutex_);
      ending.swap(until_exit_);
    });
  }

  std::mutex mutex_;  // of all below
  std::map<std::string, OfFile> until_exit_;
  std::vector<c10::intrusive_ptr<BoundedStore>> for_good_;
};

}  // namespace

void hold_store_until_exit(const StoreFile& file, c10::intrusive_ptr<BoundedStore> store) {
  HeldStores::instance().hold_until_exit(file, std::move(store));
}

void hold_store_for_good(c10::intrusive_ptr<BoundedStore> store) {
  HeldStores::instance().hold_for_good(std::move(store));
}

}  // namespace dtensor::internal
