// The ranks that exist, where their memory is, and how they talk.
//
// A process owns some of a world's ranks: all of them in World::local, one in World::from_env and World::fake, none in
// World::abstract. All library code runs over the vector of owned ranks, so that every world is the same code; there is
// no "my rank".
//
//   auto world = World::local(4);                  // 4 ranks in this process, on CPU
//   auto job   = World::from_env();                // one rank per process, as torchrun, mpirun or Slurm started them
//   auto gpus  = World::local({at::Device("cuda:0"), at::Device("cuda:1")});
//   auto plan  = World::abstract(4096);            // specs, plans, counts; no data
//
// A World is a handle: copies refer to the same world, which lives as long as any handle, mesh or tensor refers to it.
// Two worlds in one process share nothing. Thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <typeindex>
#include <vector>

namespace c10d {
class ProcessGroup;
}

namespace dtensor {

namespace internal {
class Communicator;
struct WorldState;  // world.cc
// A number for each T of World::attachment().
size_t slot_of_attachment(std::type_index type);
}  // namespace internal

class MemoryMeter;
struct LaunchOptions;  // processes/launch/job_place.h

class World {
 public:
  enum class Kind { kLocal, kProcesses, kFake, kAbstract };

  World() = default;  // no world; defined() is false

  // n ranks in this process, on one device (of a type with several, index 0 by default). Error (c10::Error): n < 1.
  static World local(int64_t n, c10::Device device = c10::Device(c10::DeviceType::CPU));
  // One rank per entry; entries may repeat (several ranks on one GPU). Error: empty, or devices of different types.
  static World local(std::vector<c10::Device> devices);
  // n ranks of which this process owns none: nothing has data; layouts, plans, counts, bytes and peak memory are those
  // of the real run.
  static World abstract(int64_t n, c10::DeviceType type = c10::DeviceType::CPU);
  // n ranks of which this process owns `rank`; collectives give tensors of the right shape and move nothing. For
  // measuring.
  static World fake(int64_t n, int64_t rank, c10::Device device = c10::Device(c10::DeviceType::CPU));

  // One rank in this process, the others in the other processes of the launcher (found as described in
  // processes/launch/launch_env.h; a single rank without a launcher). Waits for the others, no longer than the
  // deadline. Errors (c10::Error): a variable is missing or bad, the others do not come.
  // The three are defined in processes/world_from_env.cc, as they need launchers, stores and c10d, which lie above
  // meshes; users get every kind of world from this class all the same.
  static World from_env();
  static World from_env(const LaunchOptions& options);
  // The ranks of a process group that the program made itself; collectives over all ranks go through it.
  static World from_process_group(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                  c10::Device device = c10::Device(c10::DeviceType::CPU));
  // n ranks of which this process owns `rank`, on `device`, as all others have theirs on one of that type. For
  // from_env(); programs call that.
  static World of_process(int64_t n, int64_t rank, c10::Device device, std::string name,
                          std::unique_ptr<internal::Communicator> communicator);

  // The same ranks on the device "meta": tensors there have layouts, shapes and dtypes, and no data, whatever memory
  // their parts would need. For models that are laid out before their ranks allocate anything (dtensor/meta_device.h).
  // Of kind kAbstract, made once, and keeps this world alive. Of meta() it is itself.
  World meta() const;
  bool is_meta() const;
  // For meta(): its world with data. Else this one.
  World with_data() const;

  bool defined() const { return state_ != nullptr; }
  Kind kind() const;
  int64_t size() const;
  const std::vector<int64_t>& owned_ranks() const;
  // True if this process owns at least one rank; false of meta().
  bool has_data() const { return !owned_ranks().empty(); }
  c10::Device device(int64_t rank) const;
  c10::DeviceType device_type() const;
  std::string name() const;  // "local(4, cpu)"

  internal::Communicator& communicator() const;
  MemoryMeter& memory() const;  // bytes of distributed tensors alive, per rank

  // One T per world, made on first use and destroyed with it: the strategy cache, plan memo, ... T is
  // default-constructible. A T that holds specs or meshes (which hold their world) must have `void release()`: it is
  // called when the last handle in use and the last tensor are gone, and by release_caches(), and must drop them, or
  // the world would keep itself alive. Error: a process has too many types of attachments, of all worlds together.
  template <typename T>
  T& attachment() const {
    static const size_t slot = internal::slot_of_attachment(typeid(T));
    if (void* made = attachment_at(slot)) return *static_cast<T*>(made);
    return *static_cast<T*>(make_attachment(slot, [&] {
      auto value = std::make_shared<T>();
      if constexpr (requires(T & t) { t.release(); }) {
        when_unused([weak = std::weak_ptr<T>(value)] {
          if (auto t = weak.lock()) t->release();
        });
      }
      return std::static_pointer_cast<void>(std::move(value));
    }));
  }

  // Drops what attachments remember. Not while other threads use the world.
  void release_caches() const;

  // The same world, as a handle that counts as a use of it. What the factories above return, a user's meshes and
  // tensors count; what specs refer to does not, since caches hold specs.
  World in_use() const;
  // Counts as a use, without a handle.
  std::shared_ptr<const void> use() const;
  World idle() const { return World(state_); }

  friend bool operator==(const World& a, const World& b) { return a.state_ == b.state_; }
  friend bool operator!=(const World& a, const World& b) { return a.state_ != b.state_; }

 private:
  friend class DeviceMesh;
  explicit World(std::shared_ptr<internal::WorldState> state) : state_(std::move(state)) {}
  void* attachment_at(size_t slot) const;  // null: not made yet
  void* make_attachment(size_t slot, const std::function<std::shared_ptr<void>()>& make) const;
  void when_unused(std::function<void()> release) const;
  std::shared_ptr<internal::WorldState> state_;
  std::shared_ptr<void> use_;  // shared by all handles in use
};

}  // namespace dtensor
