// Counts communication while it exists, with the causes.
//
//   CommDebugMode comm;
//   auto loss = step(model, batch);
//   comm.count(Collective::kAllReduce);   // issued by one rank
//   std::cout << comm;                    // tree: forward or backward, module, operator, collective
//
// Listens to the communicators' events (comm/comm_event.h) of the thread that made it and of autograd's threads working
// for it. Modes nest: every one of them counts. Must end on the thread that made it, in reverse order of other guards;
// reading is thread-safe. Source: torch.distributed.tensor.debug.CommDebugMode.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/comm_event.h"
#include "comm/scope.h"

namespace dtensor {

// One line of the breakdown: collectives that have all but the bytes in common.
struct CommRow {
  bool backward = false;
  std::string module_path;  // "" outside modules
  std::string op;
  std::string argument;
  std::string mesh_dims;
  Collective collective = Collective::kBarrier;
  bool implicit = true;
  int64_t count = 0;
  int64_t bytes = 0;  // received by one rank
  double seconds = 0;
};

// Inputs that operators took from a tensor's cache, with all but the bytes in common. The reduced copy of a Partial
// counts in every operator that takes it, also in one that could have computed with the addends. Members as in CommRow
// and ReuseEvent (comm/reuse_event.h).
struct ReuseRow {
  bool backward = false;
  std::string module_path;
  std::string op;
  std::string argument;
  std::string saved;  // "all_gather(tp)"; "sums", "margins", "ghost region"
  int64_t count = 0;
  int64_t bytes = 0;  // that one rank would receive by these collectives
};

class CommDebugMode {
 public:
  // Events kept one by one; later ones are counted all the same.
  static constexpr size_t kMaxEvents = size_t{1} << 16;

  CommDebugMode();
  ~CommDebugMode();
  CommDebugMode(const CommDebugMode&) = delete;
  CommDebugMode& operator=(const CommDebugMode&) = delete;

  // By name ("all_reduce", ...), those that occurred.
  std::map<std::string, int64_t> counts() const;
  int64_t total() const;
  int64_t count(Collective collective) const;
  // By our name or PyTorch's ("all_gather_into_tensor", "c10d_functional.reduce_scatter_tensor", "shard_dim_alltoall").
  // Error (ValueError): unknown; the text lists the names.
  int64_t count(std::string_view name) const;

  // Received by one rank, the one that receives most.
  int64_t bytes() const;
  int64_t bytes(Collective collective) const;
  double seconds() const;  // host time inside collectives

  // Floating-point operations of matrix products, on the rank that does most; and their ratio to an even share over the
  // ranks of each operator's mesh: 1 is ideal, the number of ranks means that all ranks do all work redundantly. 1
  // without any.
  double flops() const;
  double work_share() const;

  int64_t implicit_count() const;  // inserted by the engine
  int64_t explicit_count() const;  // asked for: redistribute(), full_tensor(), ...
  int64_t forward_count() const;
  int64_t backward_count() const;

  std::map<std::string, int64_t> counts_by_op() const;
  std::map<std::string, int64_t> counts_by_module() const;

  // How often operators took an input from what a tensor remembers, and the sum of ReuseRow::bytes. Each input counts
  // once; a Partial that was reduced and then gathered counts twice.
  int64_t reused() const;
  int64_t reused_bytes() const;

  // Sorted: forward first, then by module, operator, argument, collective.
  std::vector<CommRow> rows() const;
  std::vector<ReuseRow> reused_rows() const;
  // In order of time, the first kMaxEvents.
  std::vector<CommEvent> events() const;

  // Restarts counting.
  void reset();

  // {"total", "bytes", "seconds", "flops", "work_share", "counts": {name: n}, "rows": [{...}], "reused": [{...}],
  // "events": [{...}]}
  std::string to_json() const;
  std::string to_string() const;

 private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<internal::ScopeGuard> guard_;
};

// The tree, what was reused if anything, and a last line on work that is shared unevenly.
std::ostream& operator<<(std::ostream& os, const CommDebugMode& mode);

// The collective of a name, ours or PyTorch's. Error (ValueError): unknown; the text lists the names.
Collective parse_collective(std::string_view name);

}  // namespace dtensor
