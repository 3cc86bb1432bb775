#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "comm/error_message.h"
#include "comm/nccl.h"
#include "mesh/world.h"
#include "processes/c10d/c10d_communicator.h"
#include "processes/job/bounded_store.h"
#include "processes/job/error_file.h"
#include "processes/job/job.h"
#include "processes/job/job_board.h"
#include "processes/job/process_end.h"
#include "processes/job/terminate_handler.h"
#include "processes/job/world_job.h"
#include "processes/launch/choose_device.h"
#include "processes/launch/held_stores.h"
#include "processes/launch/launch_env.h"
#include "processes/launch/launch_store.h"
#include "processes/launch/open_store.h"
#include "processes/launch/store_file.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr std::chrono::seconds kLinger(30);
constexpr std::chrono::seconds kStoreAnswer(2);   // of the store, when a world ends
constexpr std::chrono::milliseconds kLearn(500);  // how long the others may take to look for a failure

// The part of a store that one world uses. Where this process serves the store, the end of the world waits for the
// other ranks: they may still need it, and the process may end next.
class WorldStore final : public BoundedStore {
 public:
  // `file`: where the ranks meet there; may be null.
  WorldStore(const std::string& prefix, const BoundedStore& store, int64_t size, bool serves,
             const std::shared_ptr<StoreFile>& file)
      : BoundedStore(store.unbounded(), store.getTimeout(), check_of(file), prefix), size_(size), serves_(serves) {
    add_end_callback(this, [this] { leave(); });
  }

  ~WorldStore() override {
    remove_end_callback(this);
    leave();
  }

 private:
  void leave() noexcept {
    if (left_.exchange(true)) return;
    try {
      auto until = std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(kLinger, getTimeout());
      setTimeout(std::min<std::chrono::milliseconds>(kStoreAnswer, getTimeout()));
      add("gone", 1);
      bool failed = false;
      while (serves_ && add("gone", 0) < size_ && std::chrono::steady_clock::now() < until) {
        if (!failed && check({"failed/record"})) {
          failed = true;
          until = std::min(until, std::chrono::steady_clock::now() + kLearn);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    } catch (const std::exception&) {
      // The store is already gone: it is not needed any more.
    }
  }

  static Check check_of(const std::shared_ptr<StoreFile>& file) {
    return file == nullptr ? Check() : [file] { file->check(); };
  }

  const int64_t size_;
  const bool serves_;
  std::atomic<bool> left_{false};
};

// How often this rank has come to what `key` names, this time included; equal on all ranks, as all make their worlds in
// the same order.
// Error: more often than this process did, so another process has the same rank, or the store is an old one. Where the
// others still wait for a rank to come they learn of it, too; a job that is complete is left alone.
int64_t count_visit(BoundedStore& store, const std::string& key, int64_t rank, int64_t size, const std::string& name,
                    bool file) {
  struct Visits {
    int64_t process = ::getpid(), count = 0;
  };
  static std::mutex mutex;
  static auto* visits = new std::map<std::string, Visits>;  // by this process, or by one that it was forked from
  int64_t mine = 0;
  {
    std::lock_guard lock(mutex);
    Visits& own = (*visits)[absl::StrCat(name, " ", key)];
    TORCH_CHECK(own.process == ::getpid(), "World::from_env: process ", ::getpid(), " was forked from process ",
                own.process, ", which is rank ", rank, " of the job at the store ", name,
                ". A forked process is no rank of its own: start one more, or let this one exec a program");
    mine = ++own.count;
  }
  const int64_t all = store.add(absl::StrCat(key, "/came/", rank), 1);
  if (all <= mine) return mine;
  const std::string error =
      absl::StrCat("a rank ", rank, " has been at the store ", name, " before: two processes have the same rank",
                   file ? ", or the file is left from an earlier run: remove it" : "");
  JobBoard board(*store.under(absl::StrCat(key, "/", mine)), rank);
  for (int64_t r = 0; r < size; ++r) {
    if (board.place(r)) continue;
    board.post_failure(absl::StrCat("rank ", rank, " failed: ", error));
    break;
  }
  TORCH_CHECK(false, "World::from_env: ", error);
}

// All ranks take over the random state of rank 0, of the CPU and of their own device: values that must be equal
// everywhere would differ if programs, or their parts, were seeded differently.
void share_random_state(Job& job, c10::Device device, const std::string& key) {
  const Activity activity{"random state", 1, "the random state of rank 0"};
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  const auto bytes = static_cast<size_t>(state.numel());
  if (job.rank() == 0) {
    const uint8_t* data = state.const_data_ptr<uint8_t>();
    return job.store()->set(key, std::vector<uint8_t>(data, data + bytes));
  }
  job.wait_until(activity, {0}, [&] { return job.store()->check({key}); });
  const std::vector<uint8_t> first = job.store()->get(key);
  TORCH_CHECK(first.size() == bytes, "World: rank 0 has a random state of ", first.size(), " bytes, rank ", job.rank(),
              " one of ", bytes, "; start all ranks with the same LibTorch");
  std::copy(first.begin(), first.end(), state.mutable_data_ptr<uint8_t>());
  generator.set_state(state);
}

World make_world(std::shared_ptr<Job> job, const DeviceChoice& choice, c10::intrusive_ptr<c10d::ProcessGroup> group) {
  job->decide_exit_status();
  job->one_host();  // waits for all
  share_random_state(*job, c10::DeviceType::CPU, "random");
  if (!choice.device.is_cpu()) share_random_state(*job, choice.device, "random/device");
  const int64_t rank = job->rank(), size = job->size();
  std::string name = c10::str("processes(", size, ", rank ", rank, ", ", choice.backend, ", ", choice.device, ")");
  auto communicator = make_c10d_communicator(job, choice.backend, choice.device, std::move(group));
  World world = World::of_process(size, rank, choice.device, std::move(name), std::move(communicator));
  world.attachment<WorldJob>().job = job;
  return world;
}

World world_from_env(const LaunchOptions& options) {
  const JobPlace place = find_job_place(options);
  const DeviceChoice choice = choose_device(options, place, at::getNumGPUs());
  if (place.store.empty()) return World::local(1, choice.device);
  if (choice.backend == "nccl") nccl_functions();  // throws if there is none, before another rank waits for this one
  const auto store = make_bounded_store(open_store(place), place.timeout);
  const std::string key = absl::StrCat("dtensor/", place.run_id, "/", place.restart_count);
  const std::string path = parse_store(place.store, "").path;
  const auto file = path.empty() ? nullptr : std::make_shared<StoreFile>(path);
  // FileStore removes the file with the last process in it, even if others are still to come. They would wait at a new
  // file for the failed ranks.
  absl::Cleanup hold_on_failure = [&] {
    if (file) hold_store_for_good(store);
  };
  const int64_t nth = count_visit(*store, key, place.rank, place.world_size, place.store, file != nullptr);
  const bool serves = file == nullptr && place.rank == 0 && !place.store_exists;
  auto own = c10::make_intrusive<WorldStore>(absl::StrCat(key, "/", nth), *store, place.world_size, serves, file);
  World world =
      make_world(std::make_shared<Job>(std::move(own), place.rank, place.world_size, place.timeout), choice, {});
  if (file) {
    file->remember();
    hold_store_until_exit(*file, store);
  }
  std::move(hold_on_failure).Cancel();
  return world;
}

World world_from_group(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::Device device) {
  constexpr char kWho[] = "World::from_process_group: ";
  TORCH_CHECK(group, kWho, "`group` is null");
  TORCH_CHECK(group->getStore(), kWho,
              "`group` was made without a store; make it with ProcessGroup(store, rank, size), as the ranks also ",
              "meet there to tell each other of failures");
  const auto types = group->getDeviceTypes();
  TORCH_CHECK(std::any_of(types.begin(), types.end(), [&](c10::Device d) { return d.type() == device.type(); }), kWho,
              "`group` has no ", "backend for `device` ", device, "; add one with setBackend()");
  const std::string backend = absl::AsciiStrToLower(group->getBackend(device.type())->getBackendName());
  TORCH_CHECK(backend == (device.is_cuda() ? "nccl" : "gloo"), kWho, "`group` carries tensors on ", device, " by ",
              backend, "; supported are gloo for cpu and nccl for cuda");
  const int64_t rank = group->getRank();
  // Groups share no store, or have each a prefix of their own in it; how often each came is counted there alone.
  const auto store = make_bounded_store(group->getStore(), find_timeout({}));
  const int64_t nth = store->add(absl::StrCat("dtensor/group/came/", rank), 1);
  auto own = c10::make_intrusive<WorldStore>(absl::StrCat("dtensor/group/", nth), *store, group->getSize(),
                                             /*serves=*/false, nullptr);
  auto job = std::make_shared<Job>(std::move(own), rank, group->getSize(), store->getTimeout());
  return make_world(std::move(job), {backend, device}, std::move(group));
}

// Writes the text of an exception that leaves `make` to torchrun's error file. Here, and not when the process ends: the
// program may catch the exception and end with an exit code alone.
template <typename Make>
World with_error_file(Make make) {
  try {
    return make();
  } catch (const std::exception& e) {
    if (const char* file = std::getenv("TORCHELASTIC_ERROR_FILE"); file != nullptr && !is_fork_of_rank()) {
      write_error_file(file, message_of(e));
    }
    throw;
  }
}

}  // namespace

World World::from_env() { return from_env(LaunchOptions()); }

World World::from_env(const LaunchOptions& options) {
  return with_error_file([&] { return world_from_env(options); });
}

World World::from_process_group(c10::intrusive_ptr<c10d::ProcessGroup> group, c10::Device device) {
  return with_error_file([&] { return world_from_group(std::move(group), device); });
}

}  // namespace dtensor
