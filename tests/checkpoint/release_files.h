// A model after one step of Adam, the same in every release of LibTorch: what write_release_files writes, and what
// release_files_test expects of files that other releases wrote.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/serialize.h"

namespace dtensor::testing {

inline torch::nn::Sequential release_model() {
  return torch::nn::Sequential(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 3));
}

inline torch::optim::Adam release_optimizer(const torch::nn::Sequential& model) {
  return torch::optim::Adam(model->parameters(), torch::optim::AdamOptions(0.125).betas({0.5, 0.75}));
}

// Gives all parameters and buffers values, and takes a step.
inline void train(const torch::nn::Sequential& model, torch::optim::Adam& optimizer) {
  const at::NoGradGuard no_grad;
  int64_t i = 0;
  const auto fill = [&](const at::Tensor& t) {
    t.copy_(at::arange(t.numel(), t.options()).reshape(t.sizes()).add(++i).to(t.scalar_type()));
  };
  for (const at::Tensor& t : model->parameters()) fill(t);
  for (const at::Tensor& t : model->buffers()) fill(t);
  for (at::Tensor& t : model->parameters()) t.mutable_grad() = at::full_like(t, 0.5);
  optimizer.step();
}

inline at::Tensor release_tensor() { return at::arange(12, at::kDouble).reshape({3, 4}); }

// Files of every format that this library writes, into `folder`, which exists. Names say which.
inline void write_release_files(const std::string& folder) {
  torch::nn::Sequential model = release_model();
  torch::optim::Adam optimizer = release_optimizer(model);
  train(model, optimizer);
  save(release_tensor(), folder + "/tensor.pt");
  save(*model, folder + "/module.pt");
  save(state_dict(*model), folder + "/named.pt");
  save(optimizer, folder + "/adam.pt");
  save_safetensors(state_dict(*model), folder + "/named.safetensors");
  save_hugging_face(state_dict(*model), folder + "/hugging_face");
  save_checkpoint(folder + "/checkpoint", {.modules = {{"model", &*model}},
                                           .optimizers = {{"adam", &optimizer}},
                                           .tensors = {{"tensor", release_tensor()}},
                                           .values = {{"step", int64_t{7}}},
                                           .random_state = false});
}

}  // namespace dtensor::testing
