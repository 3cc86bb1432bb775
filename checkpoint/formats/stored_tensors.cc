#include "checkpoint/formats/stored_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <limits>
#include <vector>

#include "checkpoint/formats/stored_dtypes.h"
#include "checkpoint/formats/zip_file.h"

namespace dtensor::internal {
namespace {

constexpr size_t kMostDims = 64;

std::vector<int64_t> integers(const PickleValue& v) {
  std::vector<int64_t> result;
  for (const PickleValue& x : v.as<PickleList*>("sizes")->items) result.push_back(x.as<int64_t>("a size"));
  return result;
}

// The number of elements from the first one's storage on that a tensor reaches to. Error: below zero, or no int64_t.
int64_t reach(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset) {
  TORCH_CHECK(sizes.size() == strides.size() && sizes.size() <= kMostDims, "damaged: a tensor has ", sizes.size(),
              " sizes and ", strides.size(), " strides");
  bool fits = offset >= 0;
  int64_t numel = 1, end = offset;  // numel: of dims that are not empty
  bool empty = false;
  for (size_t d = 0; d < sizes.size() && fits; ++d) {
    fits = sizes[d] >= 0 && strides[d] >= 0;
    if (sizes[d] == 0) empty = true;
    if (sizes[d] == 0 || !fits) continue;
    int64_t step = 0;
    fits = !__builtin_mul_overflow(numel, sizes[d], &numel) &&
           !__builtin_mul_overflow(sizes[d] - 1, strides[d], &step) && !__builtin_add_overflow(end, step, &end);
  }
  TORCH_CHECK(fits && end < std::numeric_limits<int64_t>::max(), "damaged: a tensor of sizes ", c10::IntArrayRef(sizes),
              ", strides ", c10::IntArrayRef(strides), " and offset ", offset);
  return empty ? offset : end + 1;
}

at::Tensor rebuild(const PickleList& args, std::optional<c10::ScalarType> dtype) {
  const at::Tensor& whole = args.items[0].as<at::Tensor>("a storage");
  const int64_t offset = args.items[1].as<int64_t>("an offset");
  const auto sizes = integers(args.items[2]), strides = integers(args.items[3]);
  const auto options = whole.options().dtype(dtype.value_or(whole.scalar_type()));
  const auto elements = static_cast<int64_t>(whole.storage().nbytes() / options.dtype().itemsize());
  const int64_t end = reach(sizes, strides, offset);
  TORCH_CHECK(end <= elements, "damaged: a tensor of sizes ", c10::IntArrayRef(sizes), ", strides ",
              c10::IntArrayRef(strides), " and offset ", offset, " reaches beyond the ", elements,
              " elements of its storage");
  return at::empty({0}, options).set_(whole.storage(), offset, sizes, strides);
}

}  // namespace

PickleValue StoredTensors::storage(const PickleValue& id) {
  const auto& parts = id.as<PickleList*>("a storage")->items;
  TORCH_CHECK(parts.size() >= 5, "damaged: a storage is incomplete");
  const auto& type = parts[1].as<PickleGlobal>("a storage class");
  const auto dtype = type.name == "UntypedStorage" ? c10::ScalarType::Byte : dtype_of_storage(type.name);
  TORCH_CHECK(dtype, "tensors of ", type.to_string(), " cannot be read");
  const auto key = parts[2].as<std::string_view>("a storage key");
  const int64_t declared = parts[4].as<int64_t>("a storage size");
  auto it = records_.find(key);
  if (it == records_.end()) {
    const std::string record = "data/" + std::string(key);
    const uint64_t bytes = zip_.size(record);
    at::Storage storage(at::Storage::use_byte_size_t(), static_cast<int64_t>(bytes), c10::GetCPUAllocator(),
                        /*resizable=*/false);
    if (bytes > 0) zip_.read(record, storage.mutable_data());
    it = records_.emplace(key, std::move(storage)).first;
  }
  const size_t bytes = it->second.nbytes(), item = c10::elementSize(*dtype);
  TORCH_CHECK(bytes % item == 0 && declared == static_cast<int64_t>(bytes / item), "damaged: storage '", key, "' has ",
              bytes, " bytes, not ", declared, " elements of ", item);
  return at::empty({0}, *dtype).set_(it->second, 0, {declared}, {1});
}

std::optional<PickleValue> StoredTensors::call(const std::string& function, const PickleList& arguments) {
  const auto need = [&](size_t n) {
    TORCH_CHECK(arguments.items.size() >= n, "damaged: ", function, " lacks arguments");
  };
  if (function == "torch._utils._rebuild_tensor_v2") {  // storage, offset, size, stride, requires_grad, hooks
    need(4);
    return rebuild(arguments, std::nullopt);
  }
  if (function == "torch._utils._rebuild_tensor_v3") {  // ..., dtype
    need(7);
    const auto& name = arguments.items[6].as<PickleGlobal>("a dtype");
    const auto dtype = new_dtype(name.name);
    TORCH_CHECK(dtype, "tensors of ", name.to_string(), " cannot be read");
    return rebuild(arguments, dtype);
  }
  if (function == "torch._utils._rebuild_parameter") {
    need(1);
    return arguments.items[0].as<at::Tensor>("a tensor");
  }
  return std::nullopt;
}

}  // namespace dtensor::internal
