#include "dtensor/redistribution/internal/check_parts.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "comm/communicator.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/representation.h"
#include "plan/spec.h"

namespace dtensor::internal {
namespace {

constexpr char kWho[] = "[from_local] run_check: ";
constexpr int64_t kRecordBytes = 4096;  // a fixed size, as ranks do not know the others' sizes
constexpr size_t kMostNamed = 8;        // ranks in one error

// The arguments of a rank, in a form that can be sent.
struct Record {
  int64_t rank = 0;
  std::string dtype, placements, shape;  // shape: "none" if not given
  Shape sizes;
  uint64_t fingerprint = 0;  // of the values, if a mesh dim holds replicas
  std::string error;
};

std::string text_of(const Shape& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

// Equal bits give equal numbers in every process; a change of one word always changes the number.
uint64_t fingerprint(const at::Tensor& t) {
  const at::Tensor whole = t.detach().cpu().contiguous();
  const auto* bytes = static_cast<const char*>(whole.const_data_ptr());
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < whole.nbytes(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, std::min(sizeof word, whole.nbytes() - i));
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

Record record_of(const PassedParts& passed, size_t i, int64_t rank) {
  Record r;
  r.rank = rank;
  r.error = passed.error;
  if (!r.error.empty()) return r;
  const at::Tensor& t = passed.locals[i];
  r.dtype = c10::toString(t.scalar_type());
  r.placements = to_string(passed.placements);
  r.shape = passed.shape ? text_of(Shape(passed.shape->begin(), passed.shape->end())) : "none";
  r.sizes.assign(t.sizes().begin(), t.sizes().end());
  const bool replicas = std::any_of(passed.placements.begin(), passed.placements.end(),
                                    [](const Placement& p) { return p.is_replicate(); });
  if (replicas) r.fingerprint = fingerprint(t);
  return r;
}

// One field per line; the error comes last, as it may have several lines.
std::string encode(const Record& r) {
  const std::string head = absl::StrCat(r.dtype, "\n", r.placements, "\n", r.shape, "\n", absl::StrJoin(r.sizes, ","),
                                        "\n", r.fingerprint, "\n");
  if (head.size() > kRecordBytes) {
    Record too_long;
    too_long.error = absl::StrCat("on rank ", r.rank, ": a tensor of ", r.sizes.size(), " dims laid out ", r.placements,
                                  " is more than ", kRecordBytes, " bytes can hold; leave run_check out");
    return encode(too_long);
  }
  return (head + r.error).substr(0, kRecordBytes);
}

Record decode(int64_t rank, const char* bytes) {
  const std::string text(bytes, strnlen(bytes, kRecordBytes));
  const std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits('\n', 5));
  TORCH_CHECK(fields.size() == 6, kWho, "rank ", rank, " sent what is no description of a local tensor");
  Record r{rank, fields[0], fields[1], fields[2], {}, 0, fields[5]};
  for (const auto& size : absl::StrSplit(fields[3], ',', absl::SkipEmpty())) {
    int64_t number = 0;
    TORCH_CHECK(absl::SimpleAtoi(size, &number), kWho, "rank ", rank, " sent a size that is no number");
    r.sizes.push_back(number);
  }
  TORCH_CHECK(absl::SimpleAtoi(fields[4], &r.fingerprint), kWho, "rank ", rank,
              " sent a fingerprint that is no number");
  return r;
}

// Of all ranks in the order of mesh.ranks(); if other processes hold copies of a mesh, those of this process's copy.
std::vector<Record> gather_records(const PassedParts& passed, const DeviceMesh& mesh) {
  LocalGuard guard;
  const auto& ranks = mesh.local_ranks();
  if (mesh.world().kind() != World::Kind::kProcesses || mesh.size() == 1) {
    std::vector<Record> records;
    for (size_t i = 0; i < ranks.size(); ++i) records.push_back(record_of(passed, i, ranks[i]));
    return records;
  }
  std::vector<int64_t> dims(mesh.ndim());
  std::iota(dims.begin(), dims.end(), 0);
  CommCall call;
  call.group = &mesh.group(dims);
  call.ranks = ranks;
  call.event.cause = explicit_cause("from_local");
  call.event.dtype = c10::ScalarType::Byte;
  call.event.bytes = kRecordBytes * (call.group->size - 1);
  RankTensors mine;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const std::string text = encode(record_of(passed, i, ranks[i]));
    at::Tensor buffer = at::empty({kRecordBytes}, at::TensorOptions().dtype(at::kByte));
    std::memset(buffer.mutable_data_ptr(), 0, kRecordBytes);
    std::memcpy(buffer.mutable_data_ptr(), text.data(), text.size());
    mine.push_back(buffer.to(mesh.world().device(ranks[i])));
  }
  const auto all = mesh.world().communicator().all_gather(call, mine);
  const auto& members = call.group->members[call.group->group_of[ranks[0]]];
  std::vector<Record> records;
  for (size_t p = 0; p < members.size(); ++p) {
    const at::Tensor text = all[0][p].cpu();
    records.push_back(decode(members[p], static_cast<const char*>(text.const_data_ptr())));
  }
  return records;
}

// Names the first rank whose `field` differs from the first one's.
template <typename Field>
void check_equal(const std::vector<Record>& records, const char* what, Field field) {
  for (const Record& r : records) {
    TORCH_CHECK_VALUE(field(r) == field(records[0]), kWho, what, ": rank ", records[0].rank, " has ", field(records[0]),
                      ", rank ", r.rank, " has ", field(r));
  }
}

void check_chunk_rule(const std::vector<Record>& records, const Spec& spec) {
  std::vector<std::string> wrong;
  for (const Record& r : records) {
    const Shape expected =
        local_shape(spec.sizes(), spec.mesh().shape(), spec.placements(), spec.mesh().coordinate(r.rank));
    if (r.sizes != expected) {
      wrong.push_back(absl::StrCat("rank ", r.rank, " should have ", text_of(expected), " and has ", text_of(r.sizes)));
    }
  }
  const size_t more = wrong.size() - std::min(wrong.size(), kMostNamed);
  wrong.resize(wrong.size() - more);
  TORCH_CHECK_VALUE(wrong.empty(), kWho, "the local tensors do not make ", spec.to_string(), ": by the chunk rule ",
                    absl::StrJoin(wrong, ", "),
                    more > 0 ? absl::StrCat(", and so have ", more, " more ranks") : std::string(),
                    ". Pass such parts, or the true global shape in FromLocalOptions::shape");
}

void check_replicas(const std::vector<Record>& records, const DeviceMesh& mesh, const Placements& placements) {
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!placements[m].is_replicate()) continue;
    const RankGroups& group = mesh.get_group(m);
    std::vector<const Record*> first(group.members.size());
    for (const Record& r : records) {
      const Record*& other = first[group.group_of[r.rank]];
      if (other == nullptr) other = &r;
      TORCH_CHECK_VALUE(
          r.fingerprint == other->fingerprint, kWho, "mesh dim '", mesh.names()[m], "' is Replicate, but ranks ",
          other->rank, " and ", r.rank,
          " hold different values. Pass equal ones, or let distribute_tensor() send those of one rank to all");
    }
  }
}

}  // namespace

Shape add_up(const std::vector<Shape>& sizes, absl::Span<const int64_t> ranks, const DeviceMesh& mesh,
             const Placements& placements) {
  Shape shape = sizes[0];
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto cuts = [&](const Placement& p) { return p.is_sharded_on(static_cast<int64_t>(d)); };
    if (std::none_of(placements.begin(), placements.end(), cuts)) continue;
    shape[d] = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto coordinate = mesh.coordinate(ranks[i]);
      bool counts = true;
      for (int64_t m = 0; m < mesh.ndim(); ++m) counts &= cuts(placements[m]) || coordinate[m] == 0;
      if (counts) shape[d] += sizes[i][d];
    }
  }
  return shape;
}

Shape scaled_up(Shape part, const DeviceMesh& mesh, const Placements& placements) {
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (placements[m].is_sharded()) part[placements[m].dim()] *= mesh.size(m);
  }
  return part;
}

std::string error_of_part(const at::Tensor& t, int64_t rank, const DeviceMesh& mesh) {
  if (!t.defined()) return absl::StrCat("the local tensor of rank ", rank, " is undefined");
  if (is_dtensor(t))
    return absl::StrCat("the local tensor of rank ", rank, " is distributed already; use redistribute");
  const c10::Device device = mesh.world().device(rank);
  if (t.device() == device || t.is_meta()) return "";
  return absl::StrCat("the local tensor of rank ", rank, " is on ", t.device().str(), ", but that rank's device is ",
                      device.str());
}

Shape check_parts(const PassedParts& passed, const DeviceMesh& mesh) {
  const std::vector<Record> records = gather_records(passed, mesh);
  for (const Record& r : records) TORCH_CHECK_VALUE(r.error.empty(), kWho, r.error);
  check_equal(records, "all ranks must pass the same placements", [](const Record& r) { return r.placements; });
  check_equal(records, "all ranks must pass the same global shape, or none", [](const Record& r) { return r.shape; });
  check_equal(records, "local tensors must have one dtype", [](const Record& r) { return r.dtype; });
  for (const Record& r : records) {
    TORCH_CHECK_VALUE(r.sizes.size() == records[0].sizes.size(), kWho, "local tensors must have as many dims: rank ",
                      records[0].rank, " has ", text_of(records[0].sizes), ", rank ", r.rank, " has ",
                      text_of(r.sizes));
  }
  Shape shape;
  if (passed.shape) {
    shape.assign(passed.shape->begin(), passed.shape->end());
  } else {
    std::vector<Shape> sizes;
    std::vector<int64_t> ranks;
    for (const Record& r : records) {
      if (static_cast<int64_t>(ranks.size()) == mesh.size()) break;  // further copies of the mesh must match
      sizes.push_back(r.sizes);
      ranks.push_back(r.rank);
    }
    const bool all_here = static_cast<int64_t>(ranks.size()) == mesh.size();  // not in World::fake
    shape = all_here ? add_up(sizes, ranks, mesh, passed.placements) : scaled_up(sizes[0], mesh, passed.placements);
  }
  check_chunk_rule(records, *Spec::get(mesh, passed.placements, shape, passed.locals[0].scalar_type()));
  check_replicas(records, mesh, passed.placements);
  return shape;
}

}  // namespace dtensor::internal
