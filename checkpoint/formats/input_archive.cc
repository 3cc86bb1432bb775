#include "checkpoint/formats/input_archive.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/serialize/output-archive.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace dtensor::internal {
namespace {

using c10::IValue;
using torch::jit::Module;

// Values with attributes, all of them Modules of one unit without any code.
class ArchiveBuilder {
 public:
  explicit ArchiveBuilder(const Pickle& pickle) : limit_(pickle) {}

  void fill(Module& module, const PickleObject& object) {
    const WalkLimit::Step step(limit_);
    const auto* state = std::get_if<PickleDict*>(&object.state);
    TORCH_CHECK(state != nullptr, "an object of class ", object.type.to_string(),
                " would restore itself by code of the file, which is not run; store tensors, for instance "
                "torch.save(model.state_dict(), path)");
    for (const auto& [key, value] : (*state)->items) {
      const std::string name(key.as<std::string_view>("the name of an attribute"));
      TORCH_CHECK(!module.hasattr(name), "damaged: it has two attributes '", name, "'");
      if (const auto* inner = std::get_if<PickleObject*>(&value)) {
        module.register_module(name, module_of(**inner));
      } else {
        const IValue v = value_of(value);
        // An undefined tensor is stored as None.
        module.register_attribute(name, v.isNone() ? c10::TypePtr(c10::NoneType::get()) : v.type(), v);
      }
    }
  }

 private:
  Module module_of(const PickleObject& object) {
    const auto [it, first] = modules_.try_emplace(&object);
    if (first) {
      Module module(c10::QualifiedName("__torch__.Module"), unit_, /*shouldMangle=*/true);
      fill(module, object);
      modules_[&object] = module;
      return module;
    }
    TORCH_CHECK(it->second, "damaged: an object of class ", object.type.to_string(), " contains itself");
    return *it->second;
  }

  IValue value_of(const PickleValue& value) {
    const WalkLimit::Step step(limit_);
    if (std::holds_alternative<std::monostate>(value)) return {};
    if (const auto* v = std::get_if<bool>(&value)) return *v;
    if (const auto* v = std::get_if<int64_t>(&value)) return *v;
    if (const auto* v = std::get_if<double>(&value)) return *v;
    if (const auto* v = std::get_if<std::string_view>(&value)) return std::string(*v);
    if (const auto* v = std::get_if<at::Tensor>(&value)) return *v;
    if (const auto* v = std::get_if<PickleList*>(&value)) return list_of(**v);
    if (const auto* v = std::get_if<PickleDict*>(&value)) return dict_of(**v);
    if (const auto* v = std::get_if<PickleObject*>(&value)) return module_of(**v)._ivalue();
    TORCH_CHECK(false, "damaged: a value expected, not ", std::get<PickleGlobal>(value).to_string());
  }

  IValue list_of(const PickleList& list) {
    std::vector<IValue> items;
    for (const PickleValue& v : list.items) items.push_back(value_of(v));
    if (list.tuple) return c10::ivalue::Tuple::create(std::move(items));
    c10::impl::GenericList result(list.element.empty() ? common_type(items) : type_called(list.element));
    for (IValue& v : items) {
      TORCH_CHECK(list.element.empty() || v.type()->isSubtypeOf(*result.elementType()), "damaged: a list of ",
                  list.element, " holds a ", v.tagKind());
      result.push_back(std::move(v));
    }
    return result;
  }

  IValue dict_of(const PickleDict& dict) {
    std::vector<IValue> keys, values;
    for (const auto& [key, value] : dict.items) {
      keys.push_back(value_of(key));
      TORCH_CHECK(keys.back().isString() || keys.back().isInt(), "damaged: a dict has a key that is a ",
                  keys.back().tagKind());
      values.push_back(value_of(value));
    }
    const c10::TypePtr key_type = keys.empty() ? c10::TypePtr(c10::StringType::get()) : common_type(keys);
    TORCH_CHECK(key_type->kind() != c10::TypeKind::AnyType, "damaged: a dict has keys of several types");
    c10::impl::GenericDict result(key_type, common_type(values));
    for (size_t i = 0; i < keys.size(); ++i) result.insert_or_assign(keys[i], values[i]);
    return result;
  }

  static c10::TypePtr common_type(const std::vector<IValue>& values) {
    if (values.empty()) return c10::AnyType::get();
    const c10::TypePtr first = element_type(values[0]);
    for (const IValue& v : values) {
      if (*element_type(v) != *first) return c10::AnyType::get();
    }
    return first;
  }
  // All tensors have one type, whatever their shapes.
  static c10::TypePtr element_type(const IValue& v) {
    return v.isTensor() ? c10::TypePtr(c10::TensorType::get()) : v.type();
  }
  static c10::TypePtr type_called(std::string_view element) {
    if (element == "int") return c10::IntType::get();
    if (element == "double") return c10::FloatType::get();
    if (element == "bool") return c10::BoolType::get();
    return c10::TensorType::get();
  }

  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
  absl::flat_hash_map<const PickleObject*, std::optional<Module>> modules_;  // nullopt: not finished
  WalkLimit limit_;
};

}  // namespace

torch::serialize::InputArchive input_archive_of(const Pickle& pickle) {
  const PickleObject& object = *pickle.root().as<PickleObject*>("an object");
  // An InputArchive takes nothing but bytes. So it gets those of an archive with an empty one in it, made here, whose
  // object is then filled: no byte of the file goes through LibTorch's reader, which would run the file's code.
  std::stringstream bytes;
  torch::serialize::OutputArchive outer, empty(outer.compilation_unit());
  outer.write("file", empty);
  outer.save_to(bytes);
  torch::serialize::InputArchive archive, result;
  archive.load_from(bytes);
  IValue inner;
  archive.read("file", inner);
  Module module(inner.toObject());
  ArchiveBuilder(pickle).fill(module, object);
  archive.read("file", result);
  return result;
}

}  // namespace dtensor::internal
