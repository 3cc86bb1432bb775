// Writes files for python_reads_test.py into the folder that is its argument: named tensors of every dtype, and a
// module.
#include <ATen/ops/empty.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>

#include "checkpoint/formats/stored_dtypes.h"
#include "checkpoint/serialize.h"
#include "dtensor/distribute_module.h"
#include "dtensor/redistribute.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = std::string(argv[1]) + "/";
  dtensor::NamedTensors tensors;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<at::ScalarType>(i);
    if (!dtensor::internal::can_be_stored(dtype)) continue;
    const at::Tensor t = at::empty({2, 3}, dtype);
    auto* bytes = static_cast<uint8_t*>(t.mutable_data_ptr());
    for (size_t b = 0; b < t.nbytes(); ++b) bytes[b] = static_cast<uint8_t>(dtype == at::kBool ? b % 2 : b + 1);
    tensors.emplace(c10::toString(dtype), t);
  }
  dtensor::save(tensors, folder + "dtypes.pt");
  std::printf("%zu\n", tensors.size());
  torch::nn::Linear model(3, 2);
  const dtensor::DeviceMesh mesh(dtensor::World::local(2), {2});
  dtensor::distribute_module(*model, mesh);
  dtensor::save(*model, folder + "module.pt");
  dtensor::save(dtensor::state_dict(*model), folder + "state.pt");
}
