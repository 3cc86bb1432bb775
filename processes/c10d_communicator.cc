#include "processes/c10d_communicator.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "mesh/backend_capabilities.h"
#include "mesh/comm_work.h"
#include "processes/group_links.h"
#include "processes/mismatch.h"
#include "processes/nccl_backend.h"
#include "processes/packed_exchange.h"
#include "processes/reduce_by_exchange.h"

namespace dtensor {
namespace {

constexpr int64_t kCompareEvery = 64;       // calls of a group, at level info
constexpr std::chrono::seconds kClose(5);   // how long the end of a world waits for what is under way

// LibTorch's own recorder of collectives, one for all groups of a process, enters a new one into a map before it takes its lock
// (FlightRecorder::recordWithResetEnabled in 2.11): collectives of several threads must begin one after the other.
template <typename Start>
c10::intrusive_ptr<c10d::Work> begin_one_by_one(const Start& start) {
  static auto* mutex = new std::mutex;  // outlives threads that end after main
  std::lock_guard lock(*mutex);
  return start();
}

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
        device_(device),
        table_(backend == "nccl" ? CommBackend::kNccl : CommBackend::kGloo),
        links_(job_, backend, device, std::move(world_group)),
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
      links_.abandon();
    } else if (device_.is_cuda()) {
      links_.close(kClose);
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
    const ExchangeStep step = reduce_scatter_by_exchange(*call.group, job_->rank(), messages, inputs, outputs, op);
    exchange(link, call, Collective::kReduceScatter, step.messages, step.inputs, step.outputs, step.then);
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    if (call.ranks.empty()) return {};
    Link& link = begin(call, Collective::kAllReduce);
    RankPieces results(1);
    results[0].resize(inputs[0].size());
    const std::vector<size_t> rest = all_reduce_by_backend(link, call, inputs[0], op, results[0]);
    if (rest.empty()) return results;
    std::vector<at::Tensor> tensors;
    for (size_t k : rest) tensors.push_back(inputs[0][k]);
    AllReduceSteps plan = all_reduce_by_exchange(link.members, link.position, tensors, op);
    for (ExchangeStep& step : plan.steps) {
      exchange(link, call, Collective::kAllReduce, step.messages, step.inputs, step.outputs, step.then);
      step = {};  // its addends are not needed any more
    }
    for (size_t i = 0; i < rest.size(); ++i) results[0][rest[i]] = plan.results[i];
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
    Link& link = link_of(*call.group);
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

  Link& link_of(const Group& group) {
    Link* link = nullptr;
    guarded([&] { link = &links_.of(group); });
    return *link;
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
      guarded([&] { check_equal(*job_, comparison, link.members, link.position, link.key, name); });
    }
  }

  // One alltoall_base of packed bytes, and `then` what is to be done with what has come.
  void exchange(Link& link, const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                const RankPieces& outputs, std::function<void()> then = [] {}) {
    PackedExchange packed(*call.group, job_->rank(), device_, messages, inputs, outputs);
    if (link.members.size() == 1) return then();
    const auto start = [&] {
      return link.backend->alltoall_base(packed.receive, packed.send, packed.receive_bytes, packed.send_bytes);
    };
    if (call.work == nullptr || device_.is_cuda()) {  // a device's stream goes on by itself
      run(link, call, c, start);
      packed.unpack();
      return then();
    }
    const Job::Activity activity{link.key, link.calls, describe_call(link.calls, c, call)};
    shared_->forget_done(*job_);
    std::shared_ptr<Job::Begun> begun;
    guarded([&] { begun = job_->begin(activity, link.members, [&] { return begin_one_by_one(start); }); });
    {
      std::lock_guard lock(shared_->mutex);
      shared_->under_way.push_back(begun);
    }
    *call.work = std::make_shared<CommWork>([job = job_, shared = shared_, begun, packed = std::move(packed), then = std::move(then)] {
      try {
        job->finish(*begun);
      } catch (...) {
        shared->broken = true;
        throw;
      }
      shared->forget(begun);
      packed.unpack();
      then();
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

  const std::shared_ptr<Job> job_;
  const c10::Device device_;
  const CommBackend table_;
  GroupLinks links_;
  const DebugLevel level_;
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
