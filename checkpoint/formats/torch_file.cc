#include "checkpoint/formats/torch_file.h"

#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>

#include "absl/strings/match.h"
#include "checkpoint/formats/input_archive.h"
#include "checkpoint/formats/pickle_machine.h"
#include "checkpoint/formats/stored_tensors.h"
#include "checkpoint/formats/zip_file.h"

namespace dtensor::internal {
namespace {

// Far more than the pickle of any model, whose tensors are not in it.
constexpr uint64_t kMostPickleBytes = uint64_t{1} << 30;
// For all names of a file together.
constexpr size_t kMostNameBytes = size_t{1} << 28;

// "torch.jit._pickle.build_intlist" -> "int".
std::string_view list_element(const std::string& function) {
  for (const std::string_view element : {"int", "double", "bool", "tensor"}) {
    if (function == "torch.jit._pickle.build_" + std::string(element) + "list") return element;
  }
  return "";
}

PickleValue call(Pickle& pickle, const std::string& function, const PickleList& arguments) {
  if (function == "collections.OrderedDict") return pickle.new_dict();
  if (auto made = StoredTensors::call(function, arguments)) return *std::move(made);
  const std::string_view element = list_element(function);
  TORCH_CHECK(!element.empty() || function == "torch.jit._pickle.restore_type_tag", "it holds an object made by ",
              function, ", which is not read; store tensors, for instance torch.save(model.state_dict(), path)");
  TORCH_CHECK(!arguments.items.empty(), "damaged: ", function, " lacks arguments");
  if (!element.empty()) arguments.items[0].as<PickleList*>("a list")->element = element;
  return arguments.items[0];
}

class Flattener {
 public:
  explicit Flattener(const Pickle& pickle) : limit_(pickle) {}
  std::map<std::string, at::Tensor> result;

  void walk(const PickleValue& value, const std::string& name) {
    const WalkLimit::Step step(limit_);
    if (const auto* t = std::get_if<at::Tensor>(&value)) {
      add(name.empty() ? "0" : name, *t);
    } else if (const auto* dict = std::get_if<PickleDict*>(&value)) {
      for (const auto& [k, v] : (*dict)->items) {
        if (const auto* s = std::get_if<std::string_view>(&k)) {
          walk(v, inside(name, *s));
        } else if (const auto* i = std::get_if<int64_t>(&k)) {
          walk(v, inside(name, std::to_string(*i)));
        }
      }
    } else if (const auto* list = std::get_if<PickleList*>(&value)) {
      for (size_t i = 0; i < (*list)->items.size(); ++i) walk((*list)->items[i], inside(name, std::to_string(i)));
    } else if (const auto* object = std::get_if<PickleObject*>(&value)) {
      walk((*object)->state, name);
    }
  }

 private:
  std::string inside(const std::string& name, std::string_view key) {
    std::string joined = name.empty() ? std::string(key) : name + "." + std::string(key);
    name_bytes_ += joined.size();
    TORCH_CHECK(name_bytes_ <= kMostNameBytes, "its names have more than ", kMostNameBytes, " bytes together");
    return joined;
  }
  void add(const std::string& name, const at::Tensor& t) {
    TORCH_CHECK(result.emplace(name, t).second, "it holds two tensors '", name, "'");
  }

  WalkLimit limit_;
  size_t name_bytes_ = 0;
};

// Errors of `read` name the file.
template <typename F>
auto naming(const std::string& path, const F& read) try {
  return read();
} catch (const c10::Error& e) {
  TORCH_CHECK(false, "[load] '", path, "': ", e.what_without_backtrace());
} catch (const std::bad_alloc&) {
  TORCH_CHECK(false, "[load] '", path, "': there is not enough memory for it");
}

}  // namespace

TorchFile::TorchFile(const std::string& path)
    : path_(path), zip_(naming(path, [&] { return std::make_unique<ZipFile>(path); })) {}

TorchFile::~TorchFile() = default;

bool TorchFile::is_archive() const { return zip_->has("constants.pkl"); }

std::unique_ptr<Pickle> TorchFile::read() const {
  if (zip_->has("byteorder")) {
    const std::string order = zip_->read_text("byteorder", 16);
    TORCH_CHECK(order == "little", "its numbers are ", order, "-endian, this machine's are little-endian");
  }
  StoredTensors stored(*zip_);
  const bool objects = is_archive();
  return std::make_unique<Pickle>(
      zip_->read_text("data.pkl", kMostPickleBytes),
      Pickle::Hooks{[&](const PickleValue& id) { return stored.storage(id); }, call,
                    [&](const std::string& type) { return objects && absl::StartsWith(type, "__torch__."); }});
}

std::map<std::string, at::Tensor> TorchFile::tensors() const {
  return naming(path_, [&] {
    const auto pickle = read();
    Flattener flattener(*pickle);
    flattener.walk(pickle->root(), "");
    return std::move(flattener.result);
  });
}

torch::serialize::InputArchive TorchFile::archive() const {
  return naming(path_, [&] { return input_archive_of(*read()); });
}

}  // namespace dtensor::internal
