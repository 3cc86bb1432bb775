// Meshes made from meshes: the same ranks, grouped by fewer dims.
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "mesh/device_mesh.h"

namespace dtensor {

DeviceMesh DeviceMesh::operator[](std::string_view name) const { return (*this)[{std::string(name)}]; }

DeviceMesh DeviceMesh::operator[](const std::vector<std::string>& names) const {
  TORCH_CHECK(!names.empty(), "DeviceMesh[]: no names given; known names: ", c10::Join(", ", this->names()));
  std::vector<int64_t> dims, sizes;
  for (const auto& name : names) {
    dims.push_back(dim(name));
    sizes.push_back(shape()[dims.back()]);
    TORCH_CHECK(dims.size() == 1 || dims[dims.size() - 2] < dims.back(), "DeviceMesh[]: the names (",
                c10::Join(", ", names), ") must differ and keep the order of ", to_string());
  }
  // Sorted, so that the same submeshes are the same mesh whichever slices led to them.
  auto copies = group(dims).members;
  std::sort(copies.begin(), copies.end());
  std::vector<int64_t> ranks;
  for (const auto& copy : copies) ranks.insert(ranks.end(), copy.begin(), copy.end());
  DeviceMesh slice = intern(world(), std::move(sizes), names, std::move(ranks), static_cast<int64_t>(copies.size()));
  slice.use_ = use_;
  return slice;
}

DeviceMesh DeviceMesh::flatten(const std::vector<std::string>& names, std::string flat_name) const {
  const auto& merged = names.empty() ? this->names() : names;
  const int64_t first = dim(merged[0]);
  for (size_t i = 0; i < merged.size(); ++i) {
    TORCH_CHECK(dim(merged[i]) == first + static_cast<int64_t>(i), "DeviceMesh::flatten: the names (",
                c10::Join(", ", merged), ") must be neighbours in ", to_string(), ", in its order");
  }
  auto sizes = shape();
  auto labels = this->names();
  const auto n = static_cast<int64_t>(merged.size());
  sizes[first] = std::accumulate(sizes.begin() + first, sizes.begin() + first + n, int64_t{1}, std::multiplies<>());
  labels[first] = flat_name.empty() ? c10::Join("_", merged) : std::move(flat_name);
  sizes.erase(sizes.begin() + first + 1, sizes.begin() + first + n);
  labels.erase(labels.begin() + first + 1, labels.begin() + first + n);
  TORCH_CHECK(std::count(labels.begin(), labels.end(), labels[first]) == 1, "DeviceMesh::flatten: ", to_string(),
              " has another dim named ", labels[first], "; pass another flat_name");
  DeviceMesh flat = intern(world(), std::move(sizes), std::move(labels), ranks(), num_copies());
  flat.use_ = use_;
  return flat;
}

}  // namespace dtensor
