// World::local with several GPUs: NCCL between them, copies where ranks share a device. One thread drives all devices,
// so every collective is one group of calls, on the current stream of each device; the host waits for none of them.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/backend_capabilities.h"
#include "comm/block_copy.h"
#include "comm/communicator.h"
#include "comm/communicator_checks.h"
#include "comm/local_collectives.h"
#include "comm/packed_blocks.h"
#include "comm/reduce_in_order.h"
#include "processes/nccl/functions.h"
#include "processes/nccl/group_scatter.h"
#include "processes/nccl/nccl_comms.h"
#include "processes/nccl/nccl_types.h"

namespace dtensor::internal {
namespace {

using Kind = NcclCall::Kind;

// The memory of a block that lies in a row as it is meant, null where it does not.
void* row_of(const at::Tensor& t, const Shape& offsets, const Shape& sizes) {
  return const_cast<char*>(dense_block_on(t, offsets, sizes, t.device()));
}

class LocalNcclCommunicator final : public Communicator {
 public:
  explicit LocalNcclCommunicator(std::vector<c10::Device> devices) : Communicator(std::move(devices)) {}

 protected:
  void do_exchange(const CommCall& call, Collective c, absl::Span<const Message> messages, const RankPieces& inputs,
                   const RankPieces& outputs) override {
    const RankSlots slots(call);
    check_both_ends(slots, messages);
    Launch launch{*this, call, c};
    std::vector<Message> copies;
    std::vector<Arrival> arrivals;
    for (size_t begin = 0; begin < messages.size();) {
      const auto run = run_at(messages, begin);
      begin += run.size();
      const int64_t sender = run[0].sender, receiver = run[0].receiver;
      NcclComms::Part* part = sender == receiver ? nullptr : launch.part_of(sender);
      if (part == nullptr) {
        copies.insert(copies.end(), run.begin(), run.end());
      } else {
        send_and_receive(launch, *part, run, inputs[slots[sender]], outputs[slots[receiver]], arrivals);
      }
    }
    launch.go();
    exchange_by_copies(call, copies, inputs, outputs);
    for (const Arrival& arrival : arrivals) {
      int64_t offset = 0;
      for (const Message& m : arrival.run) {
        const at::Tensor& to = outputs[slots[m.receiver]][m.output];
        unpack(m, arrival.buffer, offset, to);
        offset += message_bytes(m, to);
      }
    }
  }

  void do_reduce_scatter(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                         const RankPieces& outputs, ReduceOp op) override {
    const RankSlots slots(call);
    check_both_ends(slots, messages);
    check_whole_groups(call, slots);
    Launch launch{*this, call, Collective::kReduceScatter};
    std::map<int64_t, GroupScatter> groups;  // by their first rank
    for (size_t begin = 0; begin < messages.size();) {
      const auto run = run_at(messages, begin);
      begin += run.size();
      const auto& members = members_of(call, run[0].sender);
      GroupScatter& group = groups[members[0]];
      group.members = &members;
      group.runs.resize(members.size() * members.size());
      group.runs[call.group->position_of[run[0].receiver] * members.size() + call.group->position_of[run[0].sender]] =
          run;
    }
    std::vector<Message> copies;
    for (auto& [first, group] : groups) {
      NcclComms::Part* part = launch.part_of(first);
      if (part == nullptr || !group.form(slots, outputs, op)) {
        for (const auto& run : group.runs) copies.insert(copies.end(), run.begin(), run.end());
      } else {
        group.call(*part, slots, inputs, launch.keep);
      }
    }
    launch.go();
    std::stable_sort(copies.begin(), copies.end(), [](const Message& a, const Message& b) {
      return std::tie(a.sender, a.receiver, a.input) < std::tie(b.sender, b.receiver, b.input);
    });
    reduce_scatter_by_copies(call, copies, inputs, outputs, op);
    for (const auto& [first, group] : groups) group.unpack(slots, outputs);
  }

  RankPieces do_all_reduce(const CommCall& call, const RankPieces& inputs, ReduceOp op) override {
    const RankSlots slots(call);
    check_whole_groups(call, slots);
    Launch launch{*this, call, Collective::kAllReduce};
    RankPieces results(call.ranks.size());
    struct Reduced {
      at::Tensor* result;
      at::Tensor carrier;
      Reduction form;
      at::ScalarType dtype;
    };
    std::vector<Reduced> all_reduced;
    for (size_t i = 0; i < results.size(); ++i) results[i].resize(inputs[i].size());
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& members = members_of(call, call.ranks[i]);
      if (members[0] != call.ranks[i]) continue;
      NcclComms::Part* part = launch.part_of(members[0]);
      for (size_t k = 0; k < inputs[i].size(); ++k) {
        const at::Tensor& like = inputs[i][k];
        const Reduction form = reduction_by(CommBackend::kNcclLocal, Collective::kAllReduce, like.scalar_type(), op);
        const bool by_nccl = part != nullptr && form.carrier != Carrier::kInOrder && like.numel() > 0;
        RankTensors addends, outputs;
        for (int64_t member : members) {
          addends.push_back(inputs[slots[member]][k]);
          at::Tensor& result = results[slots[member]][k];
          if (!by_nccl) {
            outputs.push_back(result = at::empty(like.sizes(), like.options().device(device(member))));
            continue;
          }
          const at::Tensor carrier = to_carrier(addends.back(), form);
          part->calls.push_back({.kind = Kind::kAllReduce,
                                 .position = call.group->position_of[member],
                                 .from = carrier.data_ptr(),
                                 .to = carrier.data_ptr(),
                                 .count = static_cast<size_t>(carrier.numel()),
                                 .dtype = nccl_dtype(form.dtype),
                                 .op = nccl_op(form.op)});
          all_reduced.push_back({&result, carrier, form, like.scalar_type()});
        }
        if (!by_nccl) reduce_in_order(outputs, addends, op);
      }
    }
    // Tensor by tensor on every device, so that all make their calls in one order.
    launch.go();
    for (const Reduced& reduced : all_reduced)
      *reduced.result = from_carrier(reduced.carrier, reduced.form, reduced.dtype);
    return results;
  }

  void do_barrier(const CommCall&) override {}  // all ranks are on this thread

 private:
  static const std::vector<int64_t>& members_of(const CommCall& call, int64_t rank) {
    return call.group->members[call.group->group_of[rank]];
  }

  // The calls of one collective, by NcclComms.
  struct Launch {
    LocalNcclCommunicator& communicator;
    const CommCall& call;
    Collective collective;
    RankTensors keep =
        {};  // buffers that the calls read; freed memory is used again after them, in the order of the stream
    std::vector<NcclComms::Part> parts = {};
    std::map<int64_t, size_t> part_of_group = {};

    // The part of the group of `rank`; null if it uses copies. Valid until the next call.
    NcclComms::Part* part_of(int64_t rank) {
      const int64_t group = call.group->group_of[rank];
      auto it = part_of_group.find(group);
      if (it == part_of_group.end()) {
        NcclComms* comms = communicator.comms_of(call.group->members[group], *this);
        it = part_of_group.emplace(group, comms == nullptr ? SIZE_MAX : parts.size()).first;
        if (comms != nullptr) parts.push_back({comms, {}});
      }
      return it->second == SIZE_MAX ? nullptr : &parts[it->second];
    }

    std::string what() const {
      std::vector<std::string> groups;
      for (const auto& [group, part] : part_of_group) {
        std::vector<std::string> members;
        for (int64_t rank : call.group->members[group]) {
          members.push_back(absl::StrCat("rank ", rank, " on ", communicator.device(rank).str()));
        }
        groups.push_back(absl::StrJoin(members, ", "));
      }
      const auto& cause = call.event.cause.op;
      return absl::StrCat(std::string(to_string(collective)), " over ", call.group->name, cause.empty() ? "" : " for ",
                          cause, " (", absl::StrJoin(groups, "; "), ")");
    }

    void go() {
      if (!parts.empty()) NcclComms::launch(absl::MakeSpan(parts), [this] { return what(); });
    }
  };

  // Messages of one sender to one receiver that arrive in a buffer, to be unpacked.
  struct Arrival {
    absl::Span<const Message> run;
    at::Tensor buffer;
  };

  // Adds the calls that bring `run`, all messages of one sender to one receiver, from tensors of `from` to those of
  // `to`.
  static void send_and_receive(Launch& launch, NcclComms::Part& part, absl::Span<const Message> run, const Pieces& from,
                               const Pieces& to, std::vector<Arrival>& arrivals) {
    const Message& first = run[0];
    int64_t bytes = 0;
    for (const Message& m : run) bytes += message_bytes(m, from[m.input]);
    if (bytes == 0) return;
    void* source = nullptr;
    void* target = nullptr;
    if (run.size() == 1) {
      source = row_of(from[first.input], first.block.from, first.block.sizes);
      target = row_of(to[first.output], first.block.to, first.block.sizes);
    }
    if (source == nullptr || target == nullptr) {  // both ends send the same number of bytes: pack on both
      const at::Tensor sent = at::empty({bytes}, from[first.input].options().dtype(at::kByte));
      const at::Tensor received = at::empty({bytes}, to[first.output].options().dtype(at::kByte));
      int64_t offset = 0;
      for (const Message& m : run) {
        pack(m, from[m.input], sent, offset);
        offset += message_bytes(m, from[m.input]);
      }
      source = sent.data_ptr();
      target = received.data_ptr();
      launch.keep.push_back(sent);
      arrivals.push_back({run, received});
    } else {
      bytes = numel_of(first.block.sizes) * static_cast<int64_t>(from[first.input].element_size());
    }
    const RankGroups& group = *launch.call.group;
    const int64_t sender = group.position_of[first.sender], receiver = group.position_of[first.receiver];
    part.calls.push_back({.kind = Kind::kSend,
                          .position = sender,
                          .from = source,
                          .count = static_cast<size_t>(bytes),
                          .peer = static_cast<int>(receiver)});
    part.calls.push_back({.kind = Kind::kReceive,
                          .position = receiver,
                          .to = target,
                          .count = static_cast<size_t>(bytes),
                          .peer = static_cast<int>(sender)});
  }

  // Null if two members share a device, or there is only one.
  NcclComms* comms_of(const std::vector<int64_t>& members, const Launch& launch) {
    std::vector<int> devices;
    for (int64_t rank : members) devices.push_back(device(rank).index());
    std::vector<int> sorted = devices;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() < 2 || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return nullptr;
    std::lock_guard lock(mutex_);
    auto& comms = comms_[devices];
    if (comms == nullptr) {
      comms = std::make_unique<NcclComms>(
          std::move(devices), absl::StrCat(std::string(to_string(launch.collective)), " over ", launch.call.group->name,
                                           ": connecting the devices of ranks ", absl::StrJoin(members, ", ")));
    }
    return comms.get();
  }

  std::mutex mutex_;
  std::map<std::vector<int>, std::unique_ptr<NcclComms>>
      comms_;  // by devices in the order of the group; guarded by mutex_
};

}  // namespace

std::unique_ptr<Communicator> make_local_nccl_communicator(std::vector<c10::Device> devices) {
  return std::make_unique<LocalNcclCommunicator>(std::move(devices));
}

}  // namespace dtensor::internal
