// An n-d array of a world's ranks with named dimensions (torch.distributed.device_mesh.DeviceMesh).
//
//   DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
//   mesh["tp"];                     // the 1-d meshes along tp
//   mesh[{"dp", "tp"}];             // a slice keeps the mesh's order of dims
//   mesh.flatten({"dp", "tp"});     // one dim "dp_tp" of size 4
//
// A slice of a mesh stands for every rank's own submesh at once: mesh["tp"] above has the groups {0, 1} and {2, 3}, and
// each rank finds itself in one of them, as in a program with one rank per process. `num_copies()` is their number.
//
// A handle, compared by identity; meshes of one world with equal ranks, shape and names are one and the same.
// Thread-safe.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "mesh/world.h"
#include "placement/placement.h"

namespace dtensor {

namespace internal {
struct MeshState;  // device_mesh.cc
}  // namespace internal

class DeviceMesh {
 public:
  DeviceMesh() = default;  // no mesh; defined() is false

  // `ranks` in row-major order; by default 0 .. product(shape)-1, which must fit the world. Names default to "dim0",
  // ...
  // Errors (c10::Error): a size < 1, more ranks than the world has, a rank twice or outside the world, names repeated,
  // empty or of another number than the dims.
  DeviceMesh(World world, std::vector<int64_t> shape, std::vector<std::string> names = {},
             std::vector<int64_t> ranks = {});

  bool defined() const { return state_ != nullptr; }
  const World& world() const;
  int64_t ndim() const;
  const std::vector<int64_t>& shape() const;
  int64_t size() const;  // ranks of one copy: the product of shape
  int64_t size(int64_t dim) const;
  int64_t size(std::string_view name) const;
  const std::vector<std::string>& names() const;
  // Index of a dim by name. Error: unknown name; the text lists the known ones.
  int64_t dim(std::string_view name) const;
  // All ranks, copy after copy, row-major.
  const std::vector<int64_t>& ranks() const;
  int64_t num_copies() const;

  // Ranks of this mesh that the process owns, in the order of ranks(). The locals of a tensor on this mesh are in this
  // order.
  const std::vector<int64_t>& local_ranks() const;
  // The device that tensors on this mesh report: that of the first local rank or, without one, of the first rank.
  c10::Device device() const;
  // Where the i-th local rank stands: one entry per dim.
  c10::ArrayRef<int64_t> local_coordinate(int64_t i) const;
  // Coordinate of any rank of the mesh. Error: the rank is not in the mesh.
  std::vector<int64_t> coordinate(int64_t rank) const;
  bool contains(int64_t rank) const;
  // Position of `rank` along a dim (torch: get_local_rank).
  int64_t local_rank(int64_t rank, int64_t dim) const;

  // Groups along `dims` (ascending, not empty): which ranks they have. Cached; valid as long as the mesh. The world's
  // communicator connects them (of processes: processes/c10d/group_links.h, at the first call).
  const RankGroups& group(c10::ArrayRef<int64_t> dims) const;
  const RankGroups& get_group(std::string_view name) const;
  const RankGroups& get_group(int64_t dim) const;

  // Bit d is set if some group along dim d has ranks on different nodes, a node being `ranks_per_node` consecutive
  // ranks of the world. REQUIRES: ndim() <= 64. Cached.
  uint64_t dims_between_nodes(int64_t ranks_per_node) const;

  // The submeshes with the given dims. Errors: unknown name, name twice, names out of the mesh's order.
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh operator[](const std::vector<std::string>& names) const;
  // Else mesh[{"dp", "tp"}] could mean the string_view between two pointers.
  DeviceMesh operator[](std::initializer_list<std::string> names) const {
    return (*this)[std::vector<std::string>(names)];
  }
  // A mesh in which `names` (adjacent, in order; all dims by default) are one dim, called by the names joined with "_".
  DeviceMesh flatten(const std::vector<std::string>& names = {}, std::string flat_name = "") const;

  // The same mesh of World::meta(), and back: of that mesh, the one whose tensors have data. Itself, where it is that.
  DeviceMesh meta() const;
  DeviceMesh with_data() const;

  std::string to_string() const;  // "mesh(dp=2, tp=2)"

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.state_ == b.state_; }
  friend bool operator!=(const DeviceMesh& a, const DeviceMesh& b) { return a.state_ != b.state_; }
  const void* identity() const { return state_.get(); }

  // The same mesh, as a handle that does not count as a use of its world (World::in_use()): for caches.
  DeviceMesh idle() const { return DeviceMesh(state_); }

 private:
  explicit DeviceMesh(std::shared_ptr<internal::MeshState> state) : state_(std::move(state)) {}
  DeviceMesh in(const World& world) const;
  static DeviceMesh intern(World world, std::vector<int64_t> shape, std::vector<std::string> names,
                           std::vector<int64_t> ranks, int64_t num_copies);
  std::shared_ptr<internal::MeshState> state_;
  std::shared_ptr<void> use_;
};

std::ostream& operator<<(std::ostream& os, const DeviceMesh& mesh);

}  // namespace dtensor
