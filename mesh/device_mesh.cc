#include "mesh/device_mesh.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <ostream>
#include <utility>

namespace dtensor {
using namespace internal;

namespace internal {

struct MeshState {
  World world;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  std::vector<int64_t> ranks;
  int64_t num_copies = 1;
  int64_t size = 1;

  std::vector<int64_t> index_of;  // world rank -> index into ranks, -1 outside the mesh
  std::vector<int64_t> local_ranks;
  std::vector<int64_t> local_coordinates;  // ndim entries per local rank
  c10::Device device{c10::DeviceType::CPU};

  std::mutex nodes_mutex;
  std::map<int64_t, uint64_t> between_nodes;  // dims_between_nodes() by ranks per node

  std::mutex groups_mutex;
  std::map<Shape, std::unique_ptr<const RankGroups>> groups;  // by dims

  int64_t ndim() const { return static_cast<int64_t>(shape.size()); }

  // Writes the coordinate of ranks[index] within its copy.
  void coordinate_of_index(int64_t index, int64_t* coordinate) const {
    for (int64_t d = ndim() - 1; d >= 0; --d) {
      coordinate[d] = index % shape[d];
      index /= shape[d];
    }
  }
};

}  // namespace internal

namespace {

// The meshes of a world that are alive. Weak: a mesh keeps its world alive, not the other way round.
struct MeshTable {
  std::mutex mutex;
  std::vector<std::weak_ptr<MeshState>> meshes;
};

MeshState& checked(const std::shared_ptr<MeshState>& state) {
  TORCH_CHECK(state != nullptr, "DeviceMesh: this handle has no mesh; make one with DeviceMesh(world, shape, names)");
  return *state;
}

std::string describe(const std::vector<int64_t>& shape, const std::vector<std::string>& names) {
  std::string text = "mesh(";
  for (size_t d = 0; d < shape.size(); ++d) text += c10::str(d > 0 ? ", " : "", names[d], "=", shape[d]);
  return text + ")";
}

void check_names(const std::vector<std::string>& names, size_t ndim) {
  TORCH_CHECK(names.size() == ndim, "DeviceMesh: names has ", names.size(), " entries (", c10::Join(", ", names),
              ") for a mesh of ", ndim, " dims; give one name per dim");
  for (size_t d = 0; d < ndim; ++d) {
    TORCH_CHECK(!names[d].empty(), "DeviceMesh: the name of dim ", d, " is empty; names must not be");
    TORCH_CHECK(std::find(names.begin(), names.begin() + d, names[d]) == names.begin() + d, "DeviceMesh: the name ",
                names[d], " occurs twice in (", c10::Join(", ", names), "); names must differ");
  }
}

// Product of the sizes, which the world's ranks must suffice for.
int64_t checked_size(const World& world, const std::vector<int64_t>& shape) {
  TORCH_CHECK(!shape.empty(), "DeviceMesh: shape is empty; a mesh has at least 1 dim");
  const c10::IntArrayRef printable(shape);
  int64_t size = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    TORCH_CHECK(shape[d] >= 1, "DeviceMesh: shape ", printable, " has size ", shape[d], " at dim ", d,
                "; sizes must be at least 1");
    TORCH_CHECK(shape[d] <= world.size() / size, "DeviceMesh: shape ", printable, " needs more ranks than ",
                world.name(), " has; the sizes may multiply to at most ", world.size());
    size *= shape[d];
  }
  return size;
}

void check_ranks(const World& world, const std::vector<int64_t>& ranks, const std::vector<int64_t>& shape,
                 int64_t size) {
  TORCH_CHECK(static_cast<int64_t>(ranks.size()) == size, "DeviceMesh: ranks has ", ranks.size(), " entries but shape ",
              c10::IntArrayRef(shape), " has room for ", size, "; give one rank per place");
  std::vector<bool> seen(world.size());
  for (int64_t rank : ranks) {
    TORCH_CHECK(rank >= 0 && rank < world.size(), "DeviceMesh: rank ", rank, " is outside ", world.name(),
                ", whose ranks are 0..", world.size() - 1);
    TORCH_CHECK(!seen[rank], "DeviceMesh: rank ", rank, " occurs twice in ranks; a rank has one place in a mesh");
    seen[rank] = true;
  }
}

// A group per copy and per coordinate of the other dims, in row-major order.
std::unique_ptr<const RankGroups> make_group(const MeshState& mesh, const Shape& dims) {
  auto group = std::make_unique<RankGroups>();
  std::vector<bool> along(mesh.ndim());
  std::vector<std::string> names;
  for (int64_t d : dims) {
    along[d] = true;
    names.push_back(mesh.names[d]);
    group->size *= mesh.shape[d];
  }
  group->name = c10::Join(",", names);
  group->members.assign(mesh.ranks.size() / group->size, std::vector<int64_t>(group->size));
  group->group_of.assign(mesh.index_of.size(), -1);
  group->position_of.assign(mesh.index_of.size(), -1);
  std::vector<int64_t> coordinate(mesh.ndim());
  for (size_t i = 0; i < mesh.ranks.size(); ++i) {
    mesh.coordinate_of_index(static_cast<int64_t>(i), coordinate.data());
    int64_t position = 0;
    int64_t index = static_cast<int64_t>(i) / mesh.size;
    for (int64_t d = 0; d < mesh.ndim(); ++d) {
      int64_t& place = along[d] ? position : index;
      place = place * mesh.shape[d] + coordinate[d];
    }
    const int64_t rank = mesh.ranks[i];
    group->members[index][position] = rank;
    group->group_of[rank] = index;
    group->position_of[rank] = position;
  }
  return group;
}

}  // namespace

DeviceMesh DeviceMesh::intern(World world, std::vector<int64_t> shape, std::vector<std::string> names,
                              std::vector<int64_t> ranks, int64_t num_copies) {
  auto& table = world.attachment<MeshTable>();
  std::lock_guard<std::mutex> lock(table.mutex);
  auto& meshes = table.meshes;
  meshes.erase(std::remove_if(meshes.begin(), meshes.end(), [](const auto& weak) { return weak.expired(); }),
               meshes.end());
  for (const auto& weak : meshes) {
    auto mesh = weak.lock();
    if (mesh && mesh->shape == shape && mesh->names == names && mesh->ranks == ranks) {
      return DeviceMesh(std::move(mesh));
    }
  }

  auto mesh = std::make_shared<MeshState>();
  mesh->world = world.idle();
  mesh->shape = std::move(shape);
  mesh->names = std::move(names);
  mesh->ranks = std::move(ranks);
  mesh->num_copies = num_copies;
  mesh->size = static_cast<int64_t>(mesh->ranks.size()) / num_copies;
  mesh->index_of.assign(world.size(), -1);
  std::vector<bool> owned(world.size());
  for (int64_t rank : world.owned_ranks()) owned[rank] = true;
  for (size_t i = 0; i < mesh->ranks.size(); ++i) {
    const int64_t rank = mesh->ranks[i];
    mesh->index_of[rank] = static_cast<int64_t>(i);
    if (!owned[rank]) continue;
    mesh->local_ranks.push_back(rank);
    mesh->local_coordinates.resize(mesh->local_ranks.size() * mesh->shape.size());
    mesh->coordinate_of_index(static_cast<int64_t>(i),
                              mesh->local_coordinates.data() + mesh->local_coordinates.size() - mesh->ndim());
  }
  mesh->device = world.device(mesh->local_ranks.empty() ? mesh->ranks.front() : mesh->local_ranks.front());
  meshes.push_back(mesh);
  return DeviceMesh(std::move(mesh));
}

DeviceMesh::DeviceMesh(World world, std::vector<int64_t> shape, std::vector<std::string> names,
                       std::vector<int64_t> ranks) {
  TORCH_CHECK(world.defined(), "DeviceMesh: world is not defined; make one with World::local(n)");
  const int64_t size = checked_size(world, shape);
  if (ranks.empty()) {
    ranks.resize(size);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  check_ranks(world, ranks, shape, size);
  if (names.empty()) {
    for (size_t d = 0; d < shape.size(); ++d) names.push_back("dim" + std::to_string(d));
  }
  check_names(names, shape.size());
  auto use = world.in_use().use_;
  *this = intern(std::move(world), std::move(shape), std::move(names), std::move(ranks), 1);
  use_ = std::move(use);
}

DeviceMesh DeviceMesh::in(const World& world) const {
  if (world == this->world()) return *this;
  DeviceMesh mesh = intern(world, shape(), names(), ranks(), num_copies());
  mesh.use_ = world.in_use().use_;
  return mesh;
}

DeviceMesh DeviceMesh::meta() const { return in(world().meta()); }
DeviceMesh DeviceMesh::with_data() const { return in(world().with_data()); }

[[gnu::hot]] const World& DeviceMesh::world() const { return checked(state_).world; }
int64_t DeviceMesh::ndim() const { return checked(state_).ndim(); }
const std::vector<int64_t>& DeviceMesh::shape() const { return checked(state_).shape; }
int64_t DeviceMesh::size() const { return checked(state_).size; }
int64_t DeviceMesh::size(std::string_view name) const { return shape()[dim(name)]; }
const std::vector<std::string>& DeviceMesh::names() const { return checked(state_).names; }
const std::vector<int64_t>& DeviceMesh::ranks() const { return checked(state_).ranks; }
int64_t DeviceMesh::num_copies() const { return checked(state_).num_copies; }
const std::vector<int64_t>& DeviceMesh::local_ranks() const { return checked(state_).local_ranks; }
[[gnu::hot]] c10::Device DeviceMesh::device() const { return checked(state_).device; }
std::string DeviceMesh::to_string() const { return defined() ? describe(shape(), names()) : "mesh(undefined)"; }
std::ostream& operator<<(std::ostream& os, const DeviceMesh& mesh) { return os << mesh.to_string(); }

int64_t DeviceMesh::size(int64_t dim) const {
  TORCH_CHECK(dim >= 0 && dim < ndim(), "DeviceMesh::size: dim ", dim, " is outside ", to_string(),
              ", whose dims are 0..", ndim() - 1);
  return shape()[dim];
}

int64_t DeviceMesh::dim(std::string_view name) const {
  const auto& known = names();
  const auto it = std::find(known.begin(), known.end(), name);
  TORCH_CHECK(it != known.end(), "DeviceMesh: no dim is named ", name, " in ", to_string(),
              "; known names: ", c10::Join(", ", known));
  return it - known.begin();
}

c10::ArrayRef<int64_t> DeviceMesh::local_coordinate(int64_t i) const {
  const auto n = static_cast<int64_t>(local_ranks().size());
  TORCH_CHECK(i >= 0 && i < n, "DeviceMesh::local_coordinate: index ", i, " with ", n, " local ranks in ", to_string());
  return c10::ArrayRef<int64_t>(state_->local_coordinates).slice(i * ndim(), ndim());
}

std::vector<int64_t> DeviceMesh::coordinate(int64_t rank) const {
  TORCH_CHECK(contains(rank), "DeviceMesh::coordinate: rank ", rank, " is not in ", to_string(), " of ranks ",
              c10::IntArrayRef(ranks()));
  std::vector<int64_t> coordinate(ndim());
  state_->coordinate_of_index(state_->index_of[rank], coordinate.data());
  return coordinate;
}

bool DeviceMesh::contains(int64_t rank) const {
  const auto& index_of = checked(state_).index_of;
  return rank >= 0 && rank < static_cast<int64_t>(index_of.size()) && index_of[rank] >= 0;
}

int64_t DeviceMesh::local_rank(int64_t rank, int64_t dim) const {
  size(dim);  // checks dim
  return coordinate(rank)[dim];
}

uint64_t DeviceMesh::dims_between_nodes(int64_t ranks_per_node) const {
  MeshState& mesh = checked(state_);
  TORCH_CHECK(ranks_per_node >= 1, "DeviceMesh::dims_between_nodes: ranks_per_node is ", ranks_per_node,
              "; a node has at least 1 rank");
  TORCH_CHECK(mesh.ndim() <= 64, "DeviceMesh::dims_between_nodes: the mesh has ", mesh.ndim(),
              " dims, and the result has 64 bits; flatten() makes one dim of several");
  std::lock_guard<std::mutex> lock(mesh.nodes_mutex);
  auto [it, is_new] = mesh.between_nodes.try_emplace(ranks_per_node, 0);
  if (!is_new) return it->second;
  int64_t stride = 1;  // between neighbours along dim d, in indices
  for (int64_t d = mesh.ndim() - 1; d >= 0; stride *= mesh.shape[d--]) {
    for (int64_t i = 0; i < static_cast<int64_t>(mesh.ranks.size()); ++i) {
      const bool has_next = i / stride % mesh.shape[d] + 1 < mesh.shape[d];
      if (has_next && mesh.ranks[i] / ranks_per_node != mesh.ranks[i + stride] / ranks_per_node) {
        it->second |= uint64_t{1} << d;
        break;
      }
    }
  }
  return it->second;
}

const RankGroups& DeviceMesh::group(c10::ArrayRef<int64_t> dims) const {
  MeshState& mesh = checked(state_);
  TORCH_CHECK(!dims.empty(), "DeviceMesh::group: dims is empty; name at least 1 dim of ", to_string());
  for (size_t i = 0; i < dims.size(); ++i) {
    TORCH_CHECK(dims[i] >= 0 && dims[i] < ndim() && (i == 0 || dims[i - 1] < dims[i]), "DeviceMesh::group: dims ",
                c10::IntArrayRef(dims.data(), dims.size()), " of ", to_string(), " must ascend within 0..", ndim() - 1);
  }
  const Shape key(dims.begin(), dims.end());
  std::lock_guard<std::mutex> lock(mesh.groups_mutex);
  auto& group = mesh.groups[key];
  if (!group) group = make_group(mesh, key);
  return *group;
}

const RankGroups& DeviceMesh::get_group(std::string_view name) const { return get_group(dim(name)); }
const RankGroups& DeviceMesh::get_group(int64_t dim) const { return group({dim}); }

}  // namespace dtensor
