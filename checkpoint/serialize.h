// Saves files that plain LibTorch and Python's torch can read, and loads theirs. Whole tensors are written, so a file
// does not depend on a mesh: save on one mesh, load on another, or on none.
//
//   save(*model, "model.pt");                   // plain torch::load(model, "model.pt") reads it, and vice versa
//   save(state_dict(*model), "weights.pt");     // Python: model.load_state_dict(torch.load("weights.pt"))
//   load(*other_model, "weights.pt");           // any of these formats; parameters keep their layout
//
//   what is saved      format                 read by
//   tensor, module,    torch::save's archive  C++ torch::load; Python torch.jit.load
//   optimizer
//   named tensors      pickle in a zip        Python torch.load; C++ torch::pickle_load
// Safetensors files and folders in Hugging Face's layout (checkpoint/hugging_face.h) are loaded, too.
//
// Saving gathers every distributed tensor, one after the other (explicit collectives by the name "save"); the whole
// model is in this process's memory until the file is written. In a job all processes that have a part call save(), and
// the lowest of their ranks writes; all of them return when the file is complete, or throw its error. Without
// distributed tensors nothing is communicated, and the calling process writes. While a module is being saved or loaded
// its parameters are plain: no other thread may use it.
// A file is written completely or not at all, and replaces only a regular file. Loading never executes code from a
// file. Errors (c10::Error): NotImplementedError where this process lacks values (abstract and fake worlds, a mesh
// without this rank); TypeError for quantized and sparse tensors; a file that cannot be read or written, is damaged, or
// holds other objects than tensors, by path; a missing or unexpected key, or a shape that does not fit, by key and
// shapes. After an error the targets of a load are unchanged, and so is an older file.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "checkpoint/named_tensors.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace dtensor {

void save(const at::Tensor& tensor, const std::string& path);
void save(const NamedTensors& tensors, const std::string& path);
void save(const torch::nn::Module& module, const std::string& path);
// SGD, Adam, AdamW, Adagrad, RMSprop; states are gathered in the order of param_groups. Error: another optimizer with
// distributed state (NotImplementedError), or such state of a parameter that is in no group (ValueError).
void save(const torch::optim::Optimizer& optimizer, const std::string& path);

// A distributed `tensor` keeps layout and dtype and gets the values; an undefined one becomes the file's tensor.
void load(at::Tensor& tensor, const std::string& path);
// Parameters and buffers keep layout, dtype and identity. Takes modules and named tensors, written by C++ or Python.
void load(torch::nn::Module& module, const std::string& path);
// State becomes distributed like its parameter.
void load(torch::optim::Optimizer& optimizer, const std::string& path);

// Everything in a file of either format, as plain tensors.
NamedTensors load_tensors(const std::string& path);

// Parameters and buffers by path: the tensors themselves, distributed or not, no copies.
NamedTensors state_dict(const torch::nn::Module& module);
// Copies `values`, plain or distributed, into the module.
void load_state_dict(torch::nn::Module& module, const NamedTensors& values);

}  // namespace dtensor
