#include "checkpoint/serialize.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "absl/container/flat_hash_map.h"
#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/formats/torch_file.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/load_safetensors.h"
#include "checkpoint/one_writer.h"
#include "checkpoint/serialize_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

struct ModulePart {
  std::string name;
  at::Tensor tensor;    // the parameter or buffer
  at::Tensor original;  // the original value
};

std::vector<ModulePart> parts_of(const torch::nn::Module& module) {
  std::vector<ModulePart> parts;
  absl::flat_hash_map<const c10::TensorImpl*, bool> seen;  // tied parameters count once
  const auto add = [&](const std::string& name, const at::Tensor& t) {
    if (t.defined() && seen.emplace(t.unsafeGetTensorImpl(), true).second)
      parts.push_back({name, t, t.variable_data()});
  };
  for (const auto& p : module.named_parameters()) add(p.key(), p.value());
  for (const auto& b : module.named_buffers()) add(b.key(), b.value());
  return parts;
}

// While it exists the module's distributed parameters are plain, so that its own save() and load() can be called; some
// classes have their own.
class PlainForNow {
 public:
  explicit PlainForNow(const torch::nn::Module& module) : parts_(parts_of(module)) {}
  ~PlainForNow() { restore(); }
  PlainForNow(const PlainForNow&) = delete;
  PlainForNow& operator=(const PlainForNow&) = delete;

  // The whole values.
  void gather() {
    for (const ModulePart& p : parts_) check_can_be_stored(p.original, p.name);
    for (const ModulePart& p : parts_) {
      if (!is_dtensor(p.original)) continue;
      const at::Tensor whole = whole_value(p.original);
      LocalGuard guard;  // plain in the place of a distributed one
      p.tensor.set_data(whole);
    }
  }
  // Tensors of the right shape and no memory.
  void stand_in() {
    LocalGuard guard;  // plain also inside a MeshScope
    for (const ModulePart& p : parts_)
      p.tensor.set_data(at::zeros({}, p.original.options()).expand(p.original.sizes()));
  }
  void restore() {
    for (const ModulePart& p : parts_) p.tensor.set_data(p.original);
  }
  const std::vector<ModulePart>& parts() const { return parts_; }
  std::vector<at::Tensor> originals() const {
    std::vector<at::Tensor> tensors;
    for (const ModulePart& p : parts_) tensors.push_back(p.original);
    return tensors;
  }

 private:
  c10::AutoGradMode no_grad_{false};
  std::vector<ModulePart> parts_;
};

void check_shape(const std::string& name, const at::Tensor& value, const at::Tensor& target) {
  TORCH_CHECK_VALUE(value.sizes() == target.sizes(), "[load] '", name, "' has shape ", target.sizes(),
                    ", but the file holds ", value.sizes());
}

void load_archive(torch::nn::Module& module, const TorchFile& file, const std::string& path) {
  with_path(path, [&] {
    torch::serialize::InputArchive archive = file.archive();
    std::vector<at::Tensor> values;
    PlainForNow plain(module);
    plain.stand_in();
    module.load(archive);
    for (const ModulePart& p : plain.parts()) values.push_back(p.tensor.variable_data());
    plain.restore();
    for (size_t i = 0; i < values.size(); ++i) check_shape(plain.parts()[i].name, values[i], plain.parts()[i].tensor);
    for (size_t i = 0; i < values.size(); ++i) copy_into(plain.parts()[i].tensor, values[i]);
  });
}

}  // namespace

void save(const at::Tensor& tensor, const std::string& path) {
  check_can_be_stored(tensor, "");
  const at::Tensor whole = whole_value(tensor);
  torch::serialize::OutputArchive archive;
  write_once(
      {tensor}, path, [&] { archive.write("0", whole); },
      [&] { write_archive(path, [&](const auto& sink) { archive.save_to(sink); }); });
}

void save(const NamedTensors& tensors, const std::string& path) {
  NamedTensors whole;
  std::vector<at::Tensor> all;
  for (const auto& [name, t] : tensors) {
    if (!t.defined()) continue;
    check_can_be_stored(t, name);
    all.push_back(t);
  }
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> done;  // tied ones stay one
  for (const auto& [name, t] : tensors) {
    if (!t.defined()) continue;
    at::Tensor& value = done[t.unsafeGetTensorImpl()];
    if (!value.defined()) value = whole_value(t);
    whole.emplace(name, value);
  }
  write_once(all, path, nullptr, [&] { write_pickle(whole, path); });
}

void save(const torch::nn::Module& module, const std::string& path) {
  PlainForNow plain(module);
  plain.gather();
  torch::serialize::OutputArchive archive;
  write_once(
      plain.originals(), path, [&] { module.save(archive); },
      [&] { write_archive(path, [&](const auto& sink) { archive.save_to(sink); }); });
}

void load(at::Tensor& tensor, const std::string& path) {
  const NamedTensors values = load_tensors(path);
  TORCH_CHECK_VALUE(values.size() == 1, "[load] '", path, "' holds ", values.size(),
                    " tensors, not one: use load_tensors()");
  const auto& [name, value] = *values.begin();
  if (!tensor.defined()) {
    tensor = value;
    return;
  }
  with_path(path, [&, &name = name, &value = value] {
    check_shape(name, value, tensor);
    copy_into(tensor, value);
  });
}

void load(torch::nn::Module& module, const std::string& path) {
  if (holds_safetensors(path))
    return with_path(path, [&] { load_state_dict(module, safetensors_values(path, state_dict(module))); });
  const TorchFile file(path);
  if (file.is_archive()) return load_archive(module, file, path);
  with_path(path, [&] { load_state_dict(module, file.tensors()); });
}

NamedTensors load_tensors(const std::string& path) {
  if (!holds_safetensors(path)) return TorchFile(path).tensors();
  NamedTensors values = safetensors_values(path, {});
  LocalGuard guard;
  for (auto& [name, t] : values) t = t.clone();  // views of files until here
  return values;
}

NamedTensors state_dict(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& p : module.named_parameters()) {
    if (p.value().defined()) result.emplace(p.key(), p.value());
  }
  for (const auto& b : module.named_buffers()) {
    if (b.value().defined()) result.emplace(b.key(), b.value());
  }
  return result;
}

void load_state_dict(torch::nn::Module& module, const NamedTensors& values) {
  const NamedTensors targets = state_dict(module);
  std::string missing, unexpected;
  const auto list = [](std::string& names, const std::string& name) {
    names += (names.empty() ? "'" : ", '") + name + "'";
  };
  for (const auto& [name, t] : targets) {
    const auto it = values.find(name);
    if (it == values.end()) {
      list(missing, name);
    } else {
      check_shape(name, it->second, t);
    }
  }
  for (const auto& [name, t] : values) {
    if (targets.count(name) == 0) list(unexpected, name);
  }
  TORCH_CHECK_VALUE(missing.empty() && unexpected.empty(), "[load] the values do not fit ", module.name(), ":",
                    missing.empty() ? "" : " missing " + missing, missing.empty() || unexpected.empty() ? "" : ";",
                    unexpected.empty() ? "" : " unexpected " + unexpected);
  c10::AutoGradMode no_grad(false);
  for (const auto& [name, t] : targets) copy_into(t, values.at(name));
}

}  // namespace dtensor
