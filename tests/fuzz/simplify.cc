#include "tests/fuzz/simplify.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dtensor/tensor/representation.h"
#include "placement/parse_placements.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/execution.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

bool is_complex(const Leaf& leaf) { return c10::isComplexType(leaf.dtype); }
bool is_floating(const Leaf& leaf) { return c10::isFloatingType(leaf.dtype); }

size_t numel(const Leaf& leaf) {
  size_t n = is_complex(leaf) ? 2 : 1;
  for (int64_t size : leaf.sizes) n *= size;
  return n;
}

void set_size(Leaf& leaf, size_t dim, int64_t size) {
  leaf.sizes[dim] = size;
  leaf.values.resize(numel(leaf), 1);
}

// 0: the whole tensor on every rank.
int complexity(const Placement& p) {
  if (p.is_replicate()) return 0;
  if (p.is_shard()) return 1 + (p.dim() != 0);
  if (p.is_partial()) return p == Partial() ? 3 : 4;
  return 5;
}

std::vector<Placement> simpler(const Placement& p) {
  std::vector<Placement> all = {Replicate(), Shard(0)};
  if (p.is_sharded()) all.push_back(Shard(p.dim()));
  if (p.is_partial()) all.push_back(Partial());
  std::erase_if(all, [&](const Placement& q) { return complexity(q) >= complexity(p); });
  return all;
}

}  // namespace

std::vector<Program> without_a_step(const Program& program) {
  std::vector<Program> all;
  for (size_t k = program.steps.size(); k-- > 0;) {
    all.push_back(program);
    all.back().steps.erase(all.back().steps.begin() + static_cast<int64_t>(k));
  }
  return all;
}

std::vector<Program> with_a_leaf_for_a_step(const Program& program) {
  std::vector<Program> all;
  Execution plain, distributed(mesh_of(program.mesh));
  try {
    for (const Leaf& leaf : program.leaves) plain.add(leaf), distributed.add(leaf);
    for (size_t k = 0; k + 1 < program.steps.size(); ++k) {
      const Step& step = program.steps[k];
      plain.run(step);
      distributed.run(step);
      Program candidate = program;
      candidate.steps.erase(candidate.steps.begin() + static_cast<int64_t>(k));
      for (int id = step.first_id; id < step.first_id + 32; ++id) {
        const auto found = plain.tensors().find(id);
        const auto spread = distributed.tensors().find(id);
        if (found == plain.tensors().end() || spread == distributed.tensors().end() || !is_dtensor(spread->second))
          continue;
        Leaf leaf;
        leaf.id = id;
        leaf.dtype = found->second.scalar_type();
        leaf.sizes = found->second.sizes().vec();
        leaf.values = numbers(found->second);
        leaf.requires_grad = found->second.requires_grad();
        leaf.placements = spec_of(spread->second)->placements();
        for (Placement& p : leaf.placements) {
          if (p.is_mask_partial()) p = Partial();
        }
        candidate.leaves.push_back(leaf);
      }
      all.push_back(candidate);
    }
  } catch (const std::exception&) {  // rejected below autograd in this half of the program: existing ones must do
  }
  std::reverse(all.begin(), all.end());
  return all;
}

std::vector<Program> with_less_mesh(const Program& program) {
  std::vector<Program> all;
  const auto erase = [](auto& list, size_t m) { list.erase(list.begin() + static_cast<int64_t>(m)); };
  for (size_t m = 0; program.mesh.size() > 1 && m < program.mesh.size(); ++m) {
    Program candidate = program;
    erase(candidate.mesh, m);
    for (Leaf& leaf : candidate.leaves) erase(leaf.placements, m);
    for (Step& step : candidate.steps) {
      if (step.op == kRedistribute) erase(step.placements, m);
    }
    all.push_back(candidate);
  }
  for (size_t m = 0; m < program.mesh.size(); ++m) {
    for (int64_t size = 1; size < program.mesh[m]; ++size) {
      all.push_back(program);
      all.back().mesh[m] = size;
    }
  }
  return all;
}

std::vector<Program> with_plain_flags(const Program& program) {
  std::vector<Program> all;
  const auto candidate = [&]() -> Program& { return all.emplace_back(program); };
  if (program.order > 0) --candidate().order;
  if (program.replicate_unsupported) candidate().replicate_unsupported = false;
  if (program.seeds != Program::Seeds::kReplicate) candidate().seeds = Program::Seeds::kReplicate;
  for (size_t k = 0; k < program.leaves.size(); ++k) {
    if (program.leaves[k].requires_grad) candidate().leaves[k].requires_grad = false;
  }
  return all;
}

std::vector<Program> with_simpler_layouts(const Program& program) {
  std::vector<Program> all;
  for (size_t k = 0; k < program.leaves.size(); ++k) {
    const Leaf& leaf = program.leaves[k];
    for (size_t m = 0; m < leaf.placements.size(); ++m) {
      for (const Placement& p : simpler(leaf.placements[m])) {
        if (p.is_sharded() && leaf.sizes.empty()) continue;
        Program candidate = program;
        candidate.leaves[k].placements[m] = p;
        if (normalize_placements(candidate.leaves[k].placements, static_cast<int64_t>(leaf.sizes.size())).ok())
          all.push_back(candidate);
      }
    }
  }
  for (size_t k = 0; k < program.steps.size(); ++k) {
    for (size_t m = 0; m < program.steps[k].placements.size(); ++m) {
      for (const Placement& p : simpler(program.steps[k].placements[m])) {
        if (p.is_sharded()) continue;
        all.push_back(program);
        all.back().steps[k].placements[m] = p;
      }
    }
  }
  return all;
}

// One dim of one leaf, or every dim (and number in a list of them) of one size at once.
std::vector<Program> with_smaller_sizes(const Program& program) {
  std::vector<Program> all;
  std::set<int64_t> sizes;
  for (const Leaf& leaf : program.leaves) sizes.insert(leaf.sizes.begin(), leaf.sizes.end());
  for (int64_t size : sizes) {
    for (int64_t to : {int64_t{1}, int64_t{2}, size - 1}) {
      if (to >= size || to < 1) continue;
      for (bool lists : {false, true}) {
        Program candidate = program;
        for (Leaf& leaf : candidate.leaves) {
          for (size_t d = 0; d < leaf.sizes.size(); ++d) {
            if (leaf.sizes[d] == size) set_size(leaf, d, to);
          }
        }
        for (Step& step : candidate.steps) {
          for (Argument& a : step.args) {
            if (auto* list = std::get_if<std::vector<int64_t>>(&a); list && lists)
              std::replace(list->begin(), list->end(), size, to);
          }
        }
        all.push_back(candidate);
      }
    }
  }
  for (size_t k = 0; k < program.leaves.size(); ++k) {
    for (size_t d = 0; d < program.leaves[k].sizes.size(); ++d) {
      for (int64_t to : {int64_t{1}, program.leaves[k].sizes[d] - 1}) {
        if (to >= program.leaves[k].sizes[d] || to < 1) continue;
        all.push_back(program);
        set_size(all.back().leaves[k], d, to);
      }
    }
    if (program.leaves[k].sizes.size() > 1 && program.leaves[k].sizes[0] == 1) {  // a dim less
      Program candidate = program;
      Leaf& leaf = candidate.leaves[k];
      leaf.sizes.erase(leaf.sizes.begin());
      for (Placement& p : leaf.placements) {
        if (p.is_sharded())
          p = p.dim() == 0   ? Replicate()
              : p.is_shard() ? Shard(p.dim() - 1)
                             : StridedShard(p.dim() - 1, p.split_factor());
      }
      all.push_back(candidate);
    }
  }
  return all;
}

std::vector<Program> with_simpler_dtypes(const Program& program) {
  std::vector<Program> all;
  Program doubles = program;
  for (Leaf& leaf : doubles.leaves) {
    if (is_floating(leaf)) leaf.dtype = c10::ScalarType::Double;
  }
  all.push_back(doubles);
  for (size_t k = 0; k < program.leaves.size(); ++k) {
    const Leaf& leaf = program.leaves[k];
    Program candidate = program;
    Leaf& changed = candidate.leaves[k];
    if (is_complex(leaf)) {
      for (size_t i = 0; i < leaf.values.size(); i += 2) changed.values[i / 2] = leaf.values[i];
      changed.values.resize(leaf.values.size() / 2);
    }
    changed.dtype = c10::ScalarType::Double;
    all.push_back(candidate);
  }
  std::erase_if(all, [&](const Program& candidate) {
    for (size_t k = 0; k < program.leaves.size(); ++k) {
      if (candidate.leaves[k].dtype != program.leaves[k].dtype) return false;
    }
    return true;
  });
  return all;
}

std::vector<Program> with_simpler_values(const Program& program) {
  std::vector<Program> all;
  for (size_t k = 0; k < program.leaves.size(); ++k) {
    const Leaf& leaf = program.leaves[k];
    if (!is_floating(leaf) && !is_complex(leaf)) continue;
    std::vector<double> counted(leaf.values.size());
    for (size_t i = 0; i < counted.size(); ++i) counted[i] = static_cast<double>(i + 1);
    if (counted == leaf.values) continue;
    all.push_back(program);
    all.back().leaves[k].values = counted;
    std::vector<double> rounded = leaf.values;
    for (double& v : rounded) v = std::isfinite(v) ? std::round(v) : 1;
    if (rounded == leaf.values) continue;
    all.push_back(program);
    all.back().leaves[k].values = rounded;
  }
  return all;
}

}  // namespace dtensor::fuzz
