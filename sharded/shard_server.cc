#include "sharded/shard_server.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "comm/error_message.h"
#include "processes/job/bounded_store.h"
#include "processes/job/world_job.h"
#include "sharded/shard_bytes.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

std::string key(const char* what, int64_t rank, int64_t number) { return c10::str(what, "/", rank, "/", number); }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Often enough that a request takes little longer than the store does, and rarely enough for an idle thread.
constexpr std::chrono::milliseconds kShortest(1), kLongest(20);

}  // namespace

ShardServer::ShardServer(const World& world, int64_t rank, int64_t number, Read read)
    : rank_(rank), device_(world.device(rank)), read_(read) {
  const auto job = world.attachment<WorldJob>().job.lock();
  TORCH_CHECK(job != nullptr, "a shard service needs the store at which a job met, and ", world.name(), " has none");
  const std::string prefix = c10::str("shards", number, "/");
  const auto check = [weak = std::weak_ptr<Job>(job)] {
    if (const auto j = weak.lock()) j->check();
  };
  asking_ = job->store()->under(prefix, check);
  answering_ = job->store()->under(prefix, check);
  thread_ = std::thread([this] { serve(); });
}

ShardServer::~ShardServer() {
  stop_ = true;
  thread_.join();
}

void ShardServer::serve() {
  int64_t next = 1;
  auto pause = kShortest;
  while (!stop_) {
    try {
      const std::string question = key("question", rank_, next);
      if (!answering_->check({question})) {
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kLongest);
        continue;
      }
      pause = kShortest;
      const std::vector<uint8_t> asked = answering_->get(question);
      answering_->deleteKey(question);
      answering_->set(key("answer", rank_, next), bytes_of(answer({asked.begin(), asked.end()})));
      ++next;
    } catch (const std::exception&) {  // the job has failed or ends, which all its processes detect themselves
      std::this_thread::sleep_for(kLongest);
    }
  }
}

std::string ShardServer::answer(const std::string& question) const {
  try {
    const size_t space = question.find(' ');
    return "+" + to_bytes(read_(std::stoll(question.substr(0, space)), rank_, std::stoll(question.substr(space + 1))));
  } catch (const std::exception& e) {
    return "-" + message_of(e);
  }
}

Shard ShardServer::fetch(int64_t owner, int64_t id, int64_t index) {
  const int64_t number = asking_->add("next/" + std::to_string(owner), 1);
  asking_->set(key("question", owner, number), bytes_of(c10::str(id, " ", index)));
  const std::vector<uint8_t> answered = asking_->get(key("answer", owner, number));
  asking_->deleteKey(key("answer", owner, number));
  TORCH_CHECK(!answered.empty() && answered[0] == '+', "[to_here] rank ", owner, ": ",
              std::string(answered.begin() + (answered.empty() ? 0 : 1), answered.end()));
  Shard shard = shard_from_bytes({reinterpret_cast<const char*>(answered.data()) + 1, answered.size() - 1});
  if (shard.tensor.device() != device_) shard.tensor = shard.tensor.to(device_);
  return shard;
}

}  // namespace dtensor::sharded
