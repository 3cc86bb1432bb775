// Safetensors files in a job: all ranks gather, one process writes, all learn how it went and load their parts.
#include <sys/stat.h>
#include <torch/nn.h>

#include <cstdlib>

#include "checkpoint/hugging_face.h"
#include "checkpoint/serialize.h"
#include "dtensor/distribute_module.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;

torch::nn::Linear make_split_linear(double value, const Placement& placement) {
  torch::nn::Linear m(6, 8);
  torch::NoGradGuard no_grad;
  m->weight.copy_(torch::arange(48.0).view({8, 6}) * value);
  m->bias.fill_(value);
  const DeviceMesh mesh(job_world(), {job_world().size()}, {"x"});
  distribute_module(*m, mesh, [&](const std::string&, torch::nn::Module& part, const DeviceMesh& mesh) {
    shard_parameter(part, "weight", mesh, {placement});
  });
  return m;
}

// Of all ranks, beneath the test's own.
std::string safetensors_folder() {
  const char* base = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(base != nullptr ? base : "/tmp") + "/safetensors_processes";
  ::mkdir(path.c_str(), 0700);
  return path;
}

}  // namespace

TEST_CASE("safetensors_processes: saved by all ranks, and each loads its part without communication") {
  const std::string path = safetensors_folder() + "/model";
  for (int round = 1; round <= 3; ++round) {  // over the older weights, too
    auto a = make_split_linear(round, Shard(0)), b = make_split_linear(0.5, Shard(1));
    save_safetensors(state_dict(*a), path + ".safetensors");
    save_hugging_face(state_dict(*a), path, /*max_file_bytes=*/round == 2 ? 1000 : 100);
    const at::Tensor whole = full_tensor(a->weight).detach();
    CHECK(torch::equal(load_safetensors(path + ".safetensors").at("weight"), whole));
    const HuggingFaceFolder weights(path);
    CHECK(weights.files().size() == (round == 2 ? 1 : 2));
    CommDebugMode comm;
    load_state_dict(*b, weights.tensors());
    CHECK(comm.total() == 0);
    CHECK(torch::equal(full_tensor(b->weight), whole));
  }
}

TEST_CASE("safetensors_processes: an error of the writer is thrown on all ranks, and names it") {
  const auto m = make_split_linear(1, Shard(0));
  const std::string file = own_rank() == 0 ? "/none/f" : "/f";
  const auto check_error = [](const std::string& text) {
    CHECK_THAT(text, Catch::Contains("rank 0:") && Catch::Contains(safetensors_folder() + "/none") &&
                         Catch::Contains("No such file or directory"));
  };
  check_error(error_text([&] { save_safetensors(state_dict(*m), safetensors_folder() + file); }));
  check_error(error_text([&] { save_hugging_face(state_dict(*m), safetensors_folder() + file + "/folder"); }));
  CHECK_NOTHROW(save_safetensors(state_dict(*m), safetensors_folder() + "/after"));  // the job goes on
  CHECK(load_safetensors(safetensors_folder() + "/after").size() == 2);
}

}  // namespace dtensor
