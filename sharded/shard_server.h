// Serves shards to other processes, through the job's rendezvous store.
//
// A requester takes a number from the owner's counter, stores its request under that number and waits for the answer
// there. The owner polls for the next number on a separate thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "mesh/world.h"
#include "sharded/shard.h"

namespace dtensor::internal {
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

  // Errors (c10::Error): the error of reading it on the owner, the deadline, a failed rank.
  Shard fetch(int64_t owner, int64_t id, int64_t index);

 private:
  void serve();
  std::string answer(const std::string& question) const;

  const int64_t rank_;
  const c10::Device device_;
  const Read read_;
  c10::intrusive_ptr<dtensor::internal::BoundedStore> asking_, answering_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace dtensor::sharded
