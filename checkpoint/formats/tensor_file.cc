#include "checkpoint/formats/tensor_file.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <exception>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/formats/atomic_file.h"
#include "checkpoint/formats/stored_dtypes.h"

namespace dtensor::internal {
namespace {

// Writes a Python pickle of a dict of tensors, like torch.save: LibTorch's own pickler does not support new dtypes.
class PickleWriter {
 public:
  std::string pickle(const std::map<std::string, at::Tensor>& tensors) {
    bytes_ =
        "\x80\x02"
        "}(";  // protocol 2, a dict, a mark
    for (const auto& [name, t] : tensors) {
      text(name);
      tensor(t);
    }
    bytes_ += "u.";
    return std::move(bytes_);
  }
  const std::vector<at::Storage>& storages() const { return storages_; }

 private:
  void tensor(const at::Tensor& t) {
    const std::string name(new_dtype_name(t.scalar_type()));
    absl::StrAppend(&bytes_, "ctorch._utils\n_rebuild_tensor_v", name.empty() ? 2 : 3, "\n(");
    storage(t);
    integer(t.storage_offset());
    integers(t.sizes());
    integers(t.strides());
    bytes_ +=
        "\x89"
        "ccollections\nOrderedDict\n)R";  // requires no gradient, has no hooks
    if (!name.empty()) absl::StrAppend(&bytes_, "ctorch\n", name, "\n");
    bytes_ += "tR";
  }
  void storage(const at::Tensor& t) {
    const at::Storage& storage = t.storage();
    const auto [it, first] = keys_.try_emplace(storage.unsafeGetStorageImpl(), storages_.size());
    if (first) storages_.push_back(storage);
    const bool untyped = !new_dtype_name(t.scalar_type()).empty();
    bytes_ += "(";
    text("storage");
    if (untyped) {
      bytes_ += "ctorch.storage\nUntypedStorage\n";
    } else {
      absl::StrAppend(&bytes_, "ctorch\n", c10::toString(t.scalar_type()), "Storage\n");
    }
    text(std::to_string(it->second));
    text("cpu");
    integer(static_cast<int64_t>(storage.nbytes() / (untyped ? 1 : t.element_size())));
    bytes_ += "tQ";
  }
  void text(const std::string& s) {
    TORCH_CHECK(s.size() <= UINT32_MAX, "[save] a name of ", s.size(), " bytes cannot be stored");
    bytes_ += 'X';
    number(static_cast<uint32_t>(s.size()));
    bytes_ += s;
  }
  void integer(int64_t v) {
    if (v >= 0 && v <= INT32_MAX) {
      bytes_ += 'J';
      number(static_cast<int32_t>(v));
    } else {
      bytes_ += "\x8a\x08";
      number(v);
    }
  }
  void integers(c10::IntArrayRef values) {
    bytes_ += '(';
    for (const int64_t v : values) integer(v);
    bytes_ += 't';
  }
  template <typename T>
  void number(T v) {  // little endian, as this machine
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
  }

  std::string bytes_;
  std::vector<at::Storage> storages_;
  absl::flat_hash_map<const c10::StorageImpl*, size_t> keys_;
};

}  // namespace

void write_archive(const std::string& path, const ArchiveWriter& write) {
  AtomicFile file(path);
  // LibTorch's writers finish the archive in their destructors, where an error of the sink would end the process. So
  // they never see one.
  std::exception_ptr error;
  write([&](const void* bytes, size_t n) {
    try {
      if (!error) file.write(bytes, n);
    } catch (...) {
      error = std::current_exception();
    }
    return n;
  });
  if (error) std::rethrow_exception(error);
  file.commit();
}

void write_pickle(const std::map<std::string, at::Tensor>& tensors, const std::string& path) {
  PickleWriter pickler;
  const std::string data = pickler.pickle(tensors);
  write_archive(path, [&](const auto& sink) {
    caffe2::serialize::PyTorchStreamWriter writer(sink);
    writer.writeRecord("data.pkl", data.data(), data.size());
    size_t i = 0;
    for (const at::Storage& s : pickler.storages())
      writer.writeRecord("data/" + std::to_string(i++), s.data(), s.nbytes());
    writer.writeEndOfFile();
  });
}

}  // namespace dtensor::internal
