#include "processes/c10d/c10d_communicator.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "comm/backend_capabilities.h"
#include "comm/nccl.h"
#include "comm/reduce_by_exchange.h"
#include "processes/c10d/all_reduce_by_backend.h"
#include "processes/c10d/call_comparison.h"
#include "processes/c10d/calls_under_way.h"
#include "processes/c10d/group_links.h"
#include "processes/c10d/link_call.h"
#include "processes/c10d/run_exchange.h"
#include "processes/job/job_end.h"
#include "processes/job/process_end.h"

namespace dtensor::internal {
namespace {

constexpr std::chrono::seconds kClose(5);  // how long the end of a world waits for calls that are under way

// This rank's part of what an operator moves of its arguments; of several the first. Undefined for all other calls:
// where the program itself moves tensors, ranks may have other tensors for the same call.
at::Tensor moved_by(const CommCall& call, const RankPieces& inputs) {
  const CommCause& cause = call.event.cause;
  const LayoutChange* change = call.event.layout_change.get();
  const bool moves_argument = cause.implicit && !cause.argument.empty() && change && change->on_one_mesh();
  return moves_argument && !inputs.empty() && !inputs[0].empty() ? inputs[0][0] : at::Tensor();
}

class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                   c10::intrusive_ptr<c10d::ProcessGroup> world_group)
      : Communicator({device}),
        job_(std::move(job)),
        device_(device),
        backend_(backend == "nccl" ? CommBackend::kNccl : CommBackend::kGloo),
        links_(job_, backend, device, std::move(world_group)),
        under_way_(std::make_shared<CallsUnderWay>(job_)) {
    add_end_callback(this, [this] { end_calls(); });
  }

  ~C10dCommunicator() override {
    if (!job_->is_here()) {  // its threads and connections are those of another process
      links_.abandon();
      return;
    }
    remove_end_callback(this);
    const bool was_failed = failed();
    const bool all_done = end_calls();
    // A backend's destructor waits for what is under way. After a failure that may never end, so it is left open.
    const bool leave_open = under_way_->broken() || !all_done || (device_.is_cuda() && was_failed);
    if (leave_open) {
      links_.abandon();
    } else if (device_.is_cuda()) {
      links_.close(kClose);
    }
  }

  int64_t scratch_bytes(Collective c, at::ScalarType dtype, ReduceOp op, int64_t bytes,
                        int64_t group_size) const override {
    return reduction_scratch_bytes(backend_, c, dtype, op, bytes, group_size);
  }

 protected:
  void do_exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    if (call.ranks.empty()) return;
    const bool may_all_gather = c == Collective::kAllGather && has_all_gather(backend_);
    run_exchange(begin(call, c, inputs), messages, inputs, outputs, may_all_gather);
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp op) override {
    if (call.ranks.empty()) return;
    const LinkCall link_call = begin(call, Collective::kReduceScatter, inputs);
    const ExchangeStep step = reduce_scatter_by_exchange(*call.group, job_->rank(), messages, inputs, outputs, op,
                                                         /*inputs_stay=*/!link_call.is_async());
    run_exchange(link_call, step.messages, step.inputs, step.outputs, /*may_all_gather=*/false, step.then);
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    if (call.ranks.empty()) return {};
    const LinkCall link_call = begin(call, Collective::kAllReduce, inputs);
    const Link& link = link_call.link;
    RankPieces results(1);
    results[0].resize(inputs[0].size());
    const std::vector<size_t> rest = all_reduce_by_backend(link_call, backend_, inputs[0], op, results[0]);
    if (rest.empty()) return results;
    std::vector<at::Tensor> tensors;
    for (size_t k : rest) tensors.push_back(inputs[0][k]);
    AllReduceSteps plan =
        all_reduce_by_exchange(link.members, link.position, tensors, op, /*inputs_stay=*/!link_call.is_async());
    for (size_t i = 0; i < rest.size(); ++i) results[0][rest[i]] = plan.results[i];
    run_all_reduce(link_call, std::move(plan));
    return results;
  }

  void do_barrier(const CommCall& call) override {
    if (call.ranks.empty()) return;
    comparison_.at_barrier(begin(call, Collective::kBarrier, {}));
  }

 private:
  // Before every call: checks for failures of others, finds this rank's group, and compares calls.
  LinkCall begin(const CommCall& call, Collective c, const RankPieces& inputs) {
    job_->check();
    Link* link = nullptr;
    under_way_->guarded([&] { link = &links_.of(call, c); });
    std::unique_lock numbering(link->numbering);
    const int64_t number = ++link->calls, before = link->moved.move(number, moved_by(call, inputs));
    LinkCall link_call{under_way_, device_, *link, call, c, number, before, {}, std::move(numbering)};
    link_call.fingerprint = comparison_.before(link_call);
    return link_call;
  }

  bool failed() const { return under_way_->broken() || job_->failed() || std::uncaught_exceptions() > 0; }

  // Waits until all calls begun here are done, at most kClose: other ranks still need this rank's part of calls whose
  // results were not read here. False if a call is not done, which then is a failure of this rank.
  bool finish_calls() const {
    auto pending = under_way_->pending();
    for (const auto until = std::chrono::steady_clock::now() + kClose;
         pending && !failed() && std::chrono::steady_clock::now() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pending = under_way_->pending();
    }
    if (pending && !failed()) job_->fail("its program ended with work pending: " + *pending);
    return !pending;
  }

  // The same, and waits for the ranks of its groups to end, too. If the job has failed, the process does not end well.
  bool end_calls() {
    const bool all_done = finish_calls();
    if (std::uncaught_exceptions() == 0) job_->end(under_way_->broken() ? std::vector<GroupCalls>() : links_.calls());
    return all_done;
  }

  const std::shared_ptr<Job> job_;
  const c10::Device device_;
  const CommBackend backend_;
  GroupLinks links_;
  const CallComparison comparison_;
  const std::shared_ptr<CallsUnderWay> under_way_;
};

}  // namespace

std::unique_ptr<Communicator> make_c10d_communicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                                                     c10::intrusive_ptr<c10d::ProcessGroup> world_group) {
  TORCH_CHECK_VALUE(backend == "gloo" || backend == "nccl", "World: backend is \"", backend,
                    "\"; it must be gloo or nccl");
  if (backend == "nccl") nccl_functions();  // throws where there is none
  return std::make_unique<C10dCommunicator>(std::move(job), std::move(backend), device, std::move(world_group));
}

}  // namespace dtensor::internal
