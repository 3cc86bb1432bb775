#include "processes/c10d/c10d_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/backend_capabilities.h"
#include "comm/comm_work.h"
#include "comm/reduce_by_exchange.h"
#include "processes/c10d/call_order.h"
#include "processes/c10d/calls_under_way.h"
#include "processes/c10d/group_links.h"
#include "processes/c10d/mismatch.h"
#include "processes/c10d/nccl_backend.h"
#include "processes/c10d/packed_exchange.h"

namespace dtensor {
namespace {

constexpr int64_t kCompareEvery = 64;      // calls of a group, at level info
constexpr std::chrono::seconds kClose(5);  // how long the end of a world waits for what is under way

// LibTorch's own recorder of collectives, one for all groups of a process, enters a new one into a map before it takes
// its lock (FlightRecorder::recordWithResetEnabled in 2.11): collectives of several threads must begin one after the
// other.
template <typename Start>
c10::intrusive_ptr<c10d::Work> begin_one_by_one(const Start& start) {
  static auto* mutex = new std::mutex;  // outlives threads that end after main
  std::lock_guard lock(*mutex);
  return start();
}

class C10dCommunicator final : public Communicator {
  using Start = std::function<c10::intrusive_ptr<c10d::Work>()>;

 public:
  C10dCommunicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                   c10::intrusive_ptr<c10d::ProcessGroup> world_group)
      : Communicator({device}),
        job_(std::move(job)),
        device_(device),
        table_(backend == "nccl" ? CommBackend::kNccl : CommBackend::kGloo),
        links_(job_, backend, device, std::move(world_group)),
        level_(debug_level()),
        under_way_(std::make_shared<CallsUnderWay>(job_)) {}

  ~C10dCommunicator() override {
    // A backend waits in its destructor for what is under way. After a failure that may never end. Nor may this rank
    // leave while others still need what it has begun and nobody here has waited for.
    const bool failed = under_way_->broken() || job_->failed() || std::uncaught_exceptions() > 0;
    bool all_done = under_way_->all_done();
    for (const auto until = std::chrono::steady_clock::now() + kClose;
         !failed && !all_done && std::chrono::steady_clock::now() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      all_done = under_way_->all_done();
    }
    const bool leave_open = under_way_->broken() || !all_done || (device_.is_cuda() && failed);
    if (leave_open) {
      links_.abandon();
    } else if (device_.is_cuda()) {
      links_.close(kClose);
    }
  }

  int64_t scratch_bytes(Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                        int64_t group_size) const override {
    return reduction_scratch_bytes(table_, c, dtype, op, bytes, group_size);
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
    for (size_t i = 0; i < rest.size(); ++i) results[0][rest[i]] = plan.results[i];
    if (plan.steps.size() > 1 && goes_on(link, call)) {
      all_reduce_that_goes_on(link, call, std::move(plan));
      return results;
    }
    for (ExchangeStep& step : plan.steps) {
      exchange(link, call, Collective::kAllReduce, step.messages, step.inputs, step.outputs, step.then);
      step = {};  // its addends are not needed any more
    }
    return results;
  }

  void do_barrier(const CommCall& call) override {
    if (call.ranks.empty()) return;
    Link& link = begin(call, Collective::kBarrier);
    if (level_ == DebugLevel::kOff || link.calls % kCompareEvery != 0)
      compare(link, call, Collective::kBarrier, link.history, "");
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
    under_way_->guarded([&] { link = &links_.of(group); });
    return *link;
  }

  static Activity activity_of(const Link& link, const CommCall& call, Collective c) {
    return {link.key, link.calls, describe_call(link.calls, c, call)};
  }

  // Begins a collective. On CPU it is done then. On a GPU the current stream waits for it: what follows on that stream
  // sees the result, and memory that is freed is used again only after it, so no tensor needs record_stream().
  // `start` owns what it uses: if the job fails, this throws while another thread may be about to call it.
  void run(Link& link, const CommCall& call, Collective c, const Start& start) {
    const Activity activity = activity_of(link, call, c);
    if (!device_.is_cuda()) {
      const auto place = link.order->reserve();
      link.order->fill(place, beginning(activity, link, start));
      return under_way_->finish(activity, link.members, place);
    }
    under_way_->guarded([&] {
      job_->launch(activity, link.members, [&] {
        const c10::DeviceGuard guard(device_);
        start()->wait();  // with a deadline it would hold up the host, and abort the group when that passes
        return after_this();
      });
    });
  }

  // What begins a collective on CPU, whichever thread it is that its turn comes on.
  std::function<CallOrder::Begun()> beginning(const Activity& activity, const Link& link, Start start) const {
    return [weak = std::weak_ptr(under_way_), activity, members = link.members, start = std::move(start)] {
      // Gloo may keep this after the world has ended.
      const auto under_way = weak.lock();
      TORCH_CHECK(under_way != nullptr, "the world has ended");
      return under_way->guarded([&] { return under_way->job().begin(activity, members, start); });
    };
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
    run(link, call, c, [backend = link.backend.get(), all, mine]() mutable {
      std::vector<int64_t> even;
      return begin_one_by_one([&] { return backend->alltoall_base(all, mine, even, even); });
    });
    Comparison comparison{link.calls, absl::StrCat(how, describe_call(link.calls, c, call)), all, [] { return true; }};
    if (device_.is_cuda()) {
      comparison.values = at::empty({n}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
      comparison.values.copy_(all, /*non_blocking=*/true);
      comparison.here = after_this();
    }
    link.comparisons.push_back(std::move(comparison));
    if (now && device_.is_cuda()) {
      const Activity activity = activity_of(link, call, c);
      under_way_->guarded([&] { job_->wait_until(activity, link.members, link.comparisons.back().here); });
    }
    look_at_comparisons(link, call.group->name);
  }

  // Those that have arrived.
  void look_at_comparisons(Link& link, const std::string& name) {
    while (!link.comparisons.empty() && link.comparisons.front().here()) {
      const Comparison comparison = std::move(link.comparisons.front());
      link.comparisons.pop_front();
      under_way_->guarded([&] { check_equal(*job_, comparison, link.members, link.position, link.key, name); });
    }
  }

  // One alltoall_base of packed bytes, and `then` what is to be done with what has come.
  void exchange(
      Link& link, const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
      const RankPieces& outputs, std::function<void()> then = [] {}) {
    const auto packed = std::make_shared<PackedExchange>(*call.group, job_->rank(), device_, messages, inputs, outputs);
    if (link.members.size() == 1) return then();
    if (!goes_on(link, call)) {
      run(link, call, c, sending(link.backend.get(), packed));
      packed->unpack();
      return then();
    }
    const Activity activity = activity_of(link, call, c);
    const auto place = link.order->reserve();
    under_way_->add(place);
    link.order->fill(place, beginning(activity, link, sending(link.backend.get(), packed)));
    if (place->has_begun()) place->begun().get();  // an error now is the call's
    *call.work = std::make_shared<CommWork>(
        [under_way = under_way_, activity, members = link.members, place, packed, then = std::move(then)] {
          under_way->finish(activity, members, place);
          packed->unpack();
          then();
        });
  }

  // A device's stream goes on by itself.
  bool goes_on(const Link& link, const CommCall& call) const {
    return call.work != nullptr && !device_.is_cuda() && link.members.size() > 1;
  }

  // The backend outlives what is under way, or is left open; and must not end on one of its own threads.
  static Start sending(c10d::Backend* backend, std::shared_ptr<PackedExchange> packed) {
    return [backend, packed = std::move(packed)] {
      auto work = begin_one_by_one([&] {
        return backend->alltoall_base(packed->receive, packed->send, packed->receive_bytes, packed->send_bytes);
      });
      if (packed->send.is_cpu()) packed->send = at::Tensor();  // the work has it
      return work;
    };
  }

  // The second exchange takes its place behind the first at once, and begins when this rank has reduced its part, on
  // the thread that has received it: neither it nor the calls behind it wait for whoever reads the result.
  void all_reduce_that_goes_on(Link& link, const CommCall& call, AllReduceSteps plan) {
    struct Halves {
      std::vector<ExchangeStep> steps;
      std::shared_ptr<PackedExchange> first, second;
    };
    const Activity activity = activity_of(link, call, Collective::kAllReduce);
    const auto pack = [group = *call.group, rank = job_->rank(), device = device_](const ExchangeStep& step) {
      return std::make_shared<PackedExchange>(group, rank, device, step.messages, step.inputs, step.outputs);
    };
    auto halves = std::make_shared<Halves>();
    halves->steps = std::move(plan.steps);
    halves->first = pack(halves->steps[0]);
    const auto first = link.order->reserve(), second = link.order->reserve();
    under_way_->add(first);
    under_way_->add(second);
    const auto begin_second = beginning(activity, link, [halves, pack, backend = link.backend.get()] {
      const at::AutoDispatchBelowADInplaceOrView guard;
      halves->first->unpack();
      halves->steps[0].then();
      halves->first.reset();
      halves->steps[0] = {};
      halves->second = pack(halves->steps[1]);
      return sending(backend, halves->second)();
    });
    // What becomes of the second if the first fails; the job must know before the calls behind it begin.
    const auto give_up = [weak = std::weak_ptr(under_way_), order = link.order, first,
                          second](std::exception_ptr error) {
      order->fill(second, [weak, first, error]() -> CallOrder::Begun {
        const auto under_way = weak.lock();
        if (under_way == nullptr || !first->has_begun()) std::rethrow_exception(error);
        return under_way->guarded([&]() -> CallOrder::Begun {
          try {
            std::rethrow_exception(error);
          } catch (const std::exception& e) {
            under_way->job().fail(*first->begun().get(), e);
          }
        });
      });
    };
    const auto start_first = [start = sending(link.backend.get(), halves->first), order = link.order, second,
                              begin_second, give_up] {
      try {
        auto work = start();
        work->getFuture()->addCallback([order, second, begin_second, give_up](c10::ivalue::Future& first) {
          first.hasError() ? give_up(first.exception_ptr()) : order->fill(second, begin_second);
        });
        return work;
      } catch (...) {
        give_up(std::current_exception());
        throw;
      }
    };
    link.order->fill(first, beginning(activity, link, start_first));
    if (first->has_begun()) first->begun().get();
    *call.work =
        std::make_shared<CommWork>([under_way = under_way_, activity, members = link.members, first, second, halves] {
          under_way->finish(activity, members, first);
          under_way->finish(activity, members, second);
          halves->second->unpack();
          halves->steps[1].then();
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
          [backend = link.backend.get(), tensors = batch.tensors, options]() mutable {
            return begin_one_by_one([&] { return backend->allreduce_coalesced(tensors, options); });
          });
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
  const std::shared_ptr<CallsUnderWay> under_way_;
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
