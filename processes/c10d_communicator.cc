#include "processes/c10d_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/backend_capabilities.h"
#include "mesh/block_copy.h"
#include "mesh/comm_work.h"
#include "mesh/packed_blocks.h"
#include "mesh/reduce_in_order.h"
#include "processes/mismatch.h"
#include "processes/nccl_backend.h"

namespace dtensor {
namespace {

constexpr int64_t kCompareEvery = 64;       // calls of a group, at level info
constexpr std::chrono::seconds kClose(5);   // how long the end of a world waits for what is under way
constexpr int64_t kSmallBytes = 128 << 10;  // an all-reduce of so little goes as one exchange of everything

// Of all members' values of one call, on its way to the host.
struct Comparison {
  int64_t call = 0;
  std::string what;  // this rank did
  at::Tensor values;
  std::function<bool()> here;
};

// LibTorch's own recorder of collectives, one for all groups of a process, enters a new one into a map before it takes its lock
// (FlightRecorder::recordWithResetEnabled in 2.11): collectives of several threads must begin one after the other.
template <typename Start>
c10::intrusive_ptr<c10d::Work> begin_one_by_one(const Start& start) {
  static auto* mutex = new std::mutex;  // outlives threads that end after main
  std::lock_guard lock(*mutex);
  return start();
}

// A group of ranks, this one among them, and the backend that connects them.
struct Link {
  std::vector<int64_t> members;
  int64_t position = 0;  // of this rank
  std::string key;       // names the group in the store, equal on all members
  c10::intrusive_ptr<c10d::Backend> backend;
  int64_t calls = 0;
  uint64_t history = 0;                // fingerprint of all calls
  std::deque<Comparison> comparisons;  // whose values have not been looked at
  bool own = false;                    // made here, not by the user
};

class C10dCommunicator final : public Communicator {
  // With the collectives that callers need not wait for.
  struct Shared {
    std::atomic<bool> broken{false};
    std::mutex mutex;
    std::vector<std::shared_ptr<Job::Begun>> under_way;  // guarded by mutex

    bool all_done(const Job& job) {
      std::lock_guard lock(mutex);
      return std::all_of(under_way.begin(), under_way.end(), [&](const auto& begun) { return job.is_done(*begun); });
    }
    void forget(const std::shared_ptr<Job::Begun>& begun) {
      std::lock_guard lock(mutex);
      under_way.erase(std::remove(under_way.begin(), under_way.end(), begun), under_way.end());
    }
    void forget_done(const Job& job) {
      std::lock_guard lock(mutex);
      under_way.erase(std::remove_if(under_way.begin(), under_way.end(), [&](const auto& b) { return job.is_done(*b); }),
                      under_way.end());
    }
  };

 public:
  C10dCommunicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                   c10::intrusive_ptr<c10d::ProcessGroup> world_group)
      : Communicator({device}),
        job_(std::move(job)),
        backend_(std::move(backend)),
        device_(device),
        table_(backend_ == "nccl" ? CommBackend::kNccl : CommBackend::kGloo),
        world_group_(std::move(world_group)),
        level_(debug_level()) {}

  ~C10dCommunicator() override {
    // A backend waits in its destructor for what is under way. After a failure that may never end. Nor may this rank leave
    // while others still need what it has begun and nobody here has waited for.
    const bool failed = shared_->broken || job_->failed() || std::uncaught_exceptions() > 0;
    bool all_done = shared_->all_done(*job_);
    for (const auto until = std::chrono::steady_clock::now() + kClose; !failed && !all_done && std::chrono::steady_clock::now() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      all_done = shared_->all_done(*job_);
    }
    const bool leave_open = shared_->broken || !all_done || (device_.is_cuda() && failed);
    if (leave_open) {
      for (auto& [members, link] : links_) link->backend.release();
      world_group_.release();
    } else if (device_.is_cuda()) {
      close();
    }
  }

 protected:
  void do_exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    if (call.ranks.empty()) return;
    Link& link = begin(call, c);
    exchange(link, call, c, messages, inputs, outputs);
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp op) override {
    if (call.ranks.empty()) return;
    Link& link = begin(call, Collective::kReduceScatter);
    // Every addend to a tensor of its own; messages to others stay as they are.
    std::vector<Message> addend_messages(messages.begin(), messages.end());
    RankPieces addends(1);
    std::vector<std::vector<at::Tensor>> of_place;  // per place in the output, its addends in the order of the group
    std::vector<const Message*> places;
    absl::flat_hash_map<int64_t, size_t> next;  // per sender, which place comes next
    std::vector<size_t> order(messages.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return call.group->position_of[messages[a].sender] < call.group->position_of[messages[b].sender];
    });
    for (size_t i : order) {
      Message& m = addend_messages[i];
      if (m.receiver != job_->rank()) continue;
      const size_t place = next[m.sender]++;
      if (place == places.size()) {
        places.push_back(&messages[i]);
        of_place.emplace_back();
      }
      const at::Tensor& out = outputs[0][m.output];
      m.output = static_cast<int64_t>(addends[0].size());
      addends[0].push_back(at::empty(c10::IntArrayRef(m.block.sizes.data(), m.block.sizes.size()), out.options()));
      of_place[place].push_back(addends[0].back());
      m.block.to.assign(m.block.sizes.size(), 0);
    }
    std::vector<at::Tensor> sums;
    for (const Message* m : places) sums.push_back(block_view(outputs[0][m->output], m->block.to, m->block.sizes));
    exchange(link, call, Collective::kReduceScatter, addend_messages, inputs, addends,
             [sums = std::move(sums), of_place = std::move(of_place), op] {
               for (size_t p = 0; p < sums.size(); ++p) {
                 reduce_in_order({sums[p]}, of_place[p], op);
               }
             });
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    if (call.ranks.empty()) return {};
    Link& link = begin(call, Collective::kAllReduce);
    RankPieces results(1);
    results[0].resize(inputs[0].size());
    const std::vector<size_t> rest = all_reduce_by_backend(link, call, inputs[0], op, results[0]);
    if (rest.empty()) return results;
    RankPieces tensors(1);
    for (size_t k : rest) tensors[0].push_back(inputs[0][k]);
    const RankPieces sums = all_reduce_by_exchange(link, call, tensors, op);
    for (size_t i = 0; i < rest.size(); ++i) results[0][rest[i]] = sums[0][i];
    return results;
  }

  void do_barrier(const CommCall& call) override {
    if (call.ranks.empty()) return;
    Link& link = begin(call, Collective::kBarrier);
    if (level_ == DebugLevel::kOff || link.calls % kCompareEvery != 0) compare(link, call, Collective::kBarrier, link.history, "");
  }

 private:
  // The group of this rank, after everything that comes before a call: failures of others, comparisons.
  Link& begin(const CommCall& call, Collective c) {
    job_->check();
    Link& link = link_of(call);
    ++link.calls;
    if (level_ == DebugLevel::kOff) return link;
    look_at_comparisons(link, call.group->name);
    if (level_ == DebugLevel::kDetail) {
      compare(link, call, c, fingerprint(0, link.calls, c, call), "is about to make ");
    }
    link.history = fingerprint(link.history, link.calls, c, call);
    if (level_ == DebugLevel::kInfo && link.calls % kCompareEvery == 0) {
      compare(link, call, c, link.history, "has made other calls than its group; its last is ",
              /*now=*/c == Collective::kBarrier);
    }
    return link;
  }

  Link& link_of(const CommCall& call) {
    const int64_t rank = job_->rank();
    const auto& members = call.group->members[call.group->group_of[rank]];
    std::lock_guard lock(mutex_);
    auto& link = links_[members];
    if (link != nullptr && link->backend) return *link;
    link = std::make_unique<Link>();
    link->members = members;
    link->position = call.group->position_of[rank];
    link->key = absl::StrJoin(members, ",");
    make_backend(*link);
    return *link;
  }

  void make_backend(Link& link) {
    const bool all = static_cast<int64_t>(link.members.size()) == job_->size() &&
                     std::is_sorted(link.members.begin(), link.members.end());
    if (all && world_group_) {
      link.backend = world_group_->getBackend(device_.type());
      return watch(link);
    }
    auto store = c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("group/", link.key), job_->store());
    const Job::Activity activity{"making group " + link.key, 1, absl::StrCat("the making of the group of ranks ", link.key)};
    // A backend's constructor waits for all members and cannot be interrupted: see first that they are here.
    store->set(absl::StrCat("here/", link.position), std::string("1"));
    guarded([&] {
      job_->meet(activity, link.members, [&] {
        for (size_t p = 0; p < link.members.size(); ++p) {
          if (!store->check({absl::StrCat("here/", p)})) return false;
        }
        return true;
      });
      job_->run(activity, link.members, [&]() -> c10::intrusive_ptr<c10d::Work> {
        const auto position = static_cast<int>(link.position);
        const auto size = static_cast<int>(link.members.size());
        if (backend_ == "nccl") {
          link.backend = connect_nccl(activity, link, store);
          return {};
        }
        auto options = c10d::ProcessGroupGloo::Options::create(job_->timeout());
        const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
        if (interface != nullptr && *interface != '\0') {
          options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
        } else if (job_->one_host()) {
          options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
        } else {
          options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
        }
        link.backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, position, size, options);
        return {};
      });
    });
    link.own = true;
    watch(link);
  }

  // NCCL connects the ranks in a call that cannot be interrupted, so it is made on a thread that may be left behind.
  c10::intrusive_ptr<c10d::Backend> connect_nccl(const Job::Activity& activity, const Link& link,
                                                 const c10::intrusive_ptr<c10d::Store>& store) {
    std::promise<c10::intrusive_ptr<c10d::Backend>> promise;
    auto made = promise.get_future();
    std::thread([promise = std::move(promise), store = store->clone(), position = static_cast<int>(link.position),
                 size = static_cast<int>(link.members.size()), device = device_, timeout = job_->timeout()]() mutable {
      try {
        promise.set_value(make_nccl_backend(store, position, size, device, timeout));
      } catch (...) {
        promise.set_exception(std::current_exception());
      }
    }).detach();
    job_->meet(activity, link.members,
               [&] { return made.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
    return made.get();
  }

  // On a GPU a failure of the job aborts the group: nothing else ends a collective for which a rank is missing.
  void watch(const Link& link) {
    if (!device_.is_cuda()) return;
    job_->watch_group(
        link.members,
        [backend = link.backend]() -> std::string {
          const auto error = backend->getError();
          if (error == c10d::ErrorType::SUCCESS) return "";
          return error == c10d::ErrorType::TIMEOUT ? "NCCL's watchdog has timed out"
                                                   : "NCCL has lost the connection of the group";
        },
        [backend = link.backend] { backend->abort(); });
  }

  // Closes the groups that were made here, in an order that is the same on all ranks, as closing one waits for its
  // members. On a thread that may be left behind: they may come late, and a destructor must not wait for them.
  void close() {
    std::vector<std::pair<std::vector<int64_t>, c10::intrusive_ptr<c10d::Backend>>> backends;
    for (auto& [members, link] : links_) {
      if (link->own) backends.emplace_back(members, link->backend);
    }
    std::sort(backends.begin(), backends.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    try {
      std::promise<void> promise;
      const auto closed = promise.get_future();
      std::thread([promise = std::move(promise), backends = std::move(backends)]() mutable {
        for (auto& [members, backend] : backends) {
          try {
            backend->shutdown();
          } catch (const std::exception&) {
            // It is of no use any more either way.
          }
        }
        promise.set_value();
      }).detach();
      if (closed.wait_for(kClose) == std::future_status::ready) return;
    } catch (const std::exception&) {  // no thread to be had
    }
    for (auto& [members, link] : links_) link->backend.release();
  }

  // After an error nothing is sent any more: the others do not know where this rank stands.
  template <typename Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const std::exception& e) {
      shared_->broken = true;
      throw;
    }
  }

  // Begins a collective. On CPU it is done then. On a GPU the current stream waits for it: what follows on that stream
  // sees the result, and memory that is freed is used again only after it, so no tensor needs record_stream().
  void run(Link& link, const CommCall& call, Collective c,
           const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
    guarded([&] {
      const Job::Activity activity{link.key, link.calls, describe_call(link.calls, c, call)};
      if (!device_.is_cuda()) return job_->run(activity, link.members, [&] { return begin_one_by_one(start); });
      job_->launch(activity, link.members, [&] {
        const c10::DeviceGuard guard(device_);
        begin_one_by_one(start)->wait();  // with a deadline it would hold up the host, and abort the group when that passes
        return after_this();
      });
    });
  }

  // Says whether the device has done all that is on its current stream now.
  std::function<bool()> after_this() const {
    auto event = std::make_shared<c10::Event>(device_.type());
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    return [event] { return event->query(); };
  }

  // Every member gets everybody's value. Error on all of them if they differ. Unless `now`, what is on a device is
  // looked at by a later call, as the host would have to wait for the device to catch up.
  void compare(Link& link, const CommCall& call, Collective c, uint64_t value, const char* how, bool now = true) {
    const auto n = static_cast<int64_t>(link.members.size());
    if (n == 1) return;
    at::Tensor mine = at::empty({n}, at::TensorOptions().dtype(at::kLong).device(device_));
    mine.fill_(static_cast<int64_t>(value));
    at::Tensor all = at::empty({n}, mine.options());
    std::vector<int64_t> even;
    run(link, call, c, [&] { return link.backend->alltoall_base(all, mine, even, even); });
    Comparison comparison{link.calls, absl::StrCat(how, describe_call(link.calls, c, call)), all, [] { return true; }};
    if (device_.is_cuda()) {
      comparison.values = at::empty({n}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
      comparison.values.copy_(all, /*non_blocking=*/true);
      comparison.here = after_this();
    }
    link.comparisons.push_back(std::move(comparison));
    if (now && device_.is_cuda()) {
      const Job::Activity activity{link.key, link.calls, describe_call(link.calls, c, call)};
      guarded([&] { job_->meet(activity, link.members, link.comparisons.back().here); });
    }
    look_at_comparisons(link, call.group->name);
  }

  // Those that have arrived.
  void look_at_comparisons(Link& link, const std::string& name) {
    while (!link.comparisons.empty() && link.comparisons.front().here()) {
      const Comparison comparison = std::move(link.comparisons.front());
      link.comparisons.pop_front();
      check_equal(link, comparison, name);
    }
  }

  void check_equal(const Link& link, const Comparison& comparison, const std::string& name) {
    const auto n = static_cast<int64_t>(link.members.size());
    const int64_t* values = comparison.values.const_data_ptr<int64_t>();
    if (std::all_of(values, values + n, [&](int64_t v) { return v == values[0]; })) return;
    // Everybody sees the difference; now everybody says what it is.
    const std::string prefix = absl::StrCat("mismatch/", link.key, "/", comparison.call, "/");
    std::string error = absl::StrCat("ranks do not make the same calls over ", name, ":");
    int64_t odd = n - 1;  // of those who are fewest; where all are as many, the last
    for (int64_t p = 0; p < n; ++p) {
      if (std::count(values, values + n, values[p]) < std::count(values, values + n, values[odd])) odd = p;
    }
    try {
      job_->store()->set(absl::StrCat(prefix, link.position), comparison.what);
      for (int64_t p = 0; p < n; ++p) {
        job_->store()->wait({absl::StrCat(prefix, p)}, std::chrono::seconds(2));
        absl::StrAppend(&error, p > 0 ? "; " : " ", "rank ", link.members[p], " ",
                        job_->store()->get_to_str(absl::StrCat(prefix, p)));
      }
    } catch (const std::exception&) {
      absl::StrAppend(&error, " rank ", job_->rank(), " ", comparison.what, " (the others did not say)");
    }
    shared_->broken = true;
    job_->fail_as(link.members[odd], error);
    job_->check();
  }

  // One alltoall_base of packed bytes, and `then` what is to be done with what has come.
  void exchange(Link& link, const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                const RankPieces& outputs, std::function<void()> then = [] {}) {
    const int64_t rank = job_->rank();
    const auto n = static_cast<int64_t>(link.members.size());
    std::vector<std::vector<const Message*>> sends(n), receives(n);
    for (const Message& m : messages) {
      if (m.sender == rank && m.receiver == rank) {
        copy_block(inputs[0][m.input], outputs[0][m.output], m.block);
      } else if (m.sender == rank) {
        sends[call.group->position_of[m.receiver]].push_back(&m);
      } else if (m.receiver == rank) {
        receives[call.group->position_of[m.sender]].push_back(&m);
      }
    }
    if (n == 1) return then();
    std::vector<int64_t> send_bytes(n), receive_bytes(n);
    int64_t send_total = 0;
    int64_t receive_total = 0;
    for (int64_t p = 0; p < n; ++p) {
      for (const Message* m : sends[p]) send_bytes[p] += packed_bytes(*m, inputs[0][m->input]);
      for (const Message* m : receives[p]) receive_bytes[p] += packed_bytes(*m, outputs[0][m->output]);
      send_total += send_bytes[p];
      receive_total += receive_bytes[p];
    }
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    at::Tensor send = at::empty({send_total}, options);
    at::Tensor receive = at::empty({receive_total}, options);
    int64_t offset = 0;
    for (const auto& list : sends) {
      for (const Message* m : list) {
        pack(*m, inputs[0][m->input], send, offset);
        offset += packed_bytes(*m, inputs[0][m->input]);
      }
    }
    struct Arrival {
      Message message;
      int64_t offset;
      at::Tensor to;
    };
    std::vector<Arrival> arriving;
    offset = 0;
    for (const auto& list : receives) {
      for (const Message* m : list) {
        arriving.push_back({*m, offset, outputs[0][m->output]});
        offset += packed_bytes(*m, outputs[0][m->output]);
      }
    }
    const auto start = [&] { return link.backend->alltoall_base(receive, send, receive_bytes, send_bytes); };
    auto arrive = [receive, arriving = std::move(arriving), then = std::move(then)] {
      for (const Arrival& a : arriving) unpack(a.message, receive, a.offset, a.to);
      then();
    };
    if (call.work == nullptr || device_.is_cuda()) {  // a device's stream goes on by itself
      run(link, call, c, start);
      return arrive();
    }
    const Job::Activity activity{link.key, link.calls, describe_call(link.calls, c, call)};
    shared_->forget_done(*job_);
    std::shared_ptr<Job::Begun> begun;
    guarded([&] { begun = job_->begin(activity, link.members, [&] { return begin_one_by_one(start); }); });
    {
      std::lock_guard lock(shared_->mutex);
      shared_->under_way.push_back(begun);
    }
    *call.work = std::make_shared<CommWork>([job = job_, shared = shared_, begun, arrive = std::move(arrive)] {
      try {
        job->finish(*begun);
      } catch (...) {
        shared->broken = true;
        throw;
      }
      shared->forget(begun);
      arrive();
    });
  }

  // What the table gives to the backend, one call for all tensors that it gets as one dtype. Returns which are left.
  std::vector<size_t> all_reduce_by_backend(Link& link, const CommCall& call, const std::vector<at::Tensor>& inputs,
                                            ReduceOp op, std::vector<at::Tensor>& results) {
    struct Batch {
      Reduction form;
      std::vector<size_t> which;
      std::vector<at::Tensor> tensors;
    };
    std::vector<Batch> batches;
    std::vector<size_t> rest;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const Reduction form = reduction_by(table_, Collective::kAllReduce, inputs[k].scalar_type(), op);
      if (form.carrier == Carrier::kInOrder) {
        rest.push_back(k);
      } else if (inputs[k].numel() == 0) {
        results[k] = at::empty(inputs[k].sizes(), inputs[k].options());
      } else {
        const auto same = [&](const Batch& b) {
          return b.form.carrier == form.carrier && b.form.dtype == form.dtype && b.form.op == form.op;
        };
        auto batch = std::find_if(batches.begin(), batches.end(), same);
        if (batch == batches.end()) batch = batches.insert(batches.end(), Batch{form, {}, {}});
        batch->which.push_back(k);
        batch->tensors.push_back(to_carrier(inputs[k], form));
      }
    }
    constexpr c10d::ReduceOp::RedOpType kOps[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT,
                                                  c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
    for (Batch& batch : batches) {
      c10d::AllreduceCoalescedOptions options;
      options.reduceOp = kOps[static_cast<size_t>(batch.form.op)];
      run(link, call, Collective::kAllReduce,
          [&] { return link.backend->allreduce_coalesced(batch.tensors, options); });
      for (size_t i = 0; i < batch.which.size(); ++i) {
        const size_t k = batch.which[i];
        results[k] = from_carrier(batch.tensors[i], batch.form, inputs[k].scalar_type());
      }
    }
    return rest;
  }

  RankPieces all_reduce_by_exchange(Link& link, const CommCall& call, const RankPieces& inputs, ReduceOp op) {
    RankPieces results(1);
    const auto n = static_cast<int64_t>(link.members.size());
    int64_t bytes = 0;
    RankPieces flat(1);
    for (const at::Tensor& t : inputs[0]) {
      bytes += static_cast<int64_t>(t.nbytes());
      flat[0].push_back(t.contiguous().view({-1}));
      results[0].push_back(at::empty(t.sizes(), t.options()));
    }
    // In the order of the group, as in one process, so that the result is the same bit for bit. Little data: everybody
    // gets everything and adds it up. Else everybody adds up one part, and then all get all parts.
    const bool small = bytes * n <= kSmallBytes;
    std::vector<Message> messages;
    RankPieces parts(1), addends(1);
    for (size_t k = 0; k < flat[0].size(); ++k) {
      const at::Tensor& t = flat[0][k];
      const Run mine = small ? Run{0, t.numel()} : chunk(t.numel(), n, link.position);
      for (int64_t p = 0; p < n; ++p) {
        const Run part = small ? Run{0, t.numel()} : chunk(t.numel(), n, p);
        const auto to_me = static_cast<int64_t>(addends[0].size());
        addends[0].push_back(at::empty({mine.size}, t.options()));
        if (part.size > 0 && p != link.position) {
          messages.push_back(
              {job_->rank(), link.members[p], static_cast<int64_t>(k), 0, {{part.begin}, {0}, {part.size}}});
        }
        if (mine.size > 0) {
          messages.push_back(
              {link.members[p], job_->rank(), static_cast<int64_t>(k), to_me, {{mine.begin}, {0}, {mine.size}}});
        }
      }
    }
    exchange(link, call, Collective::kAllReduce, messages, flat, addends);
    for (size_t k = 0; k < flat[0].size(); ++k) {
      at::Tensor sum = small ? results[0][k].view({-1}) : at::empty(addends[0][k * n].sizes(), flat[0][k].options());
      reduce_in_order({sum}, absl::MakeConstSpan(addends[0]).subspan(k * n, n), op);
      parts[0].push_back(sum);
    }
    if (small) return results;
    messages.clear();
    RankPieces whole(1);
    for (size_t k = 0; k < flat[0].size(); ++k) {
      const int64_t numel = flat[0][k].numel();
      whole[0].push_back(results[0][k].view({-1}));
      const Run mine = chunk(numel, n, link.position);
      for (int64_t p = 0; p < n; ++p) {
        const Run part = chunk(numel, n, p);
        const auto tensor = static_cast<int64_t>(k);
        if (mine.size > 0 && p != link.position) {
          messages.push_back({job_->rank(), link.members[p], tensor, tensor, {{0}, {mine.begin}, {mine.size}}});
        }
        if (part.size > 0)
          messages.push_back({link.members[p], job_->rank(), tensor, tensor, {{0}, {part.begin}, {part.size}}});
      }
    }
    exchange(link, call, Collective::kAllReduce, messages, parts, whole);
    return results;
  }

  const std::shared_ptr<Job> job_;
  const std::string backend_;
  const c10::Device device_;
  const CommBackend table_;
  c10::intrusive_ptr<c10d::ProcessGroup> world_group_;
  const DebugLevel level_;
  std::mutex mutex_;
  absl::flat_hash_map<std::vector<int64_t>, std::unique_ptr<Link>> links_;  // guarded by mutex_
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace

std::unique_ptr<Communicator> make_c10d_communicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                                                     c10::intrusive_ptr<c10d::ProcessGroup> world_group) {
  TORCH_CHECK_VALUE(backend == "gloo" || backend == "nccl", "World: backend is \"", backend,
                    "\"; it must be gloo or nccl");
  if (backend == "nccl") check_nccl_backend();
  return std::make_unique<C10dCommunicator>(std::move(job), std::move(backend), device, std::move(world_group));
}

}  // namespace dtensor
