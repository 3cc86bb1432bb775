// Answers other processes' questions for shards, through the store at which the job met. Internal.
//
// Who wants a shard takes a number at its owner's counter, leaves the question under that number and waits for the
// answer there. The owner looks for the next number again and again, on a thread of its own.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "mesh/world.h"
#include "sharded/shard.h"

namespace dtensor {
class BoundedStore;
}

namespace dtensor::sharded {

class ShardServer {
 public:
  using Read = Shard (*)(int64_t id, int64_t rank, int64_t index);
  // `number`: of the service in this world, the same in every process. Error (c10::Error): the world's job has no
  // store.
  ShardServer(const World& world, int64_t rank, int64_t number, Read read);
  ~ShardServer();

  // Errors (c10::Error): what reading it threw at the owner, the deadline, a rank that failed.
  Shard fetch(int64_t owner, int64_t id, int64_t index);

 private:
  void serve();
  std::string answer(const std::string& question) const;

  const int64_t rank_;
  const c10::Device device_;
  const Read read_;
  c10::intrusive_ptr<BoundedStore> asking_, answering_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtensor::sharded
