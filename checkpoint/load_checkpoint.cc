#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/agreement.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/checksums.h"
#include "checkpoint/sharded/contents.h"
#include "checkpoint/sharded/manifest.h"
#include "checkpoint/sharded/part_file.h"
#include "checkpoint/sharded/wait_for_device.h"
#include "comm/error_message.h"
#include "dtensor/dispatch/local_parts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"
#include "plan/spec.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr char kLoadCheckpoint[] = "load_checkpoint";

// A range of a file that a part of a tensor in this process needs.
struct Read {
  const std::string* name;
  const ManifestTensor* tensor;
  const ManifestBox* source;
  Block block;      // from the box, to the part
  at::Tensor part;  // this process' memory
};

class Loader {
 public:
  Loader(const std::string& folder, const Manifest& manifest, const LoadCheckpointOptions& options)
      : folder_(folder), manifest_(manifest), options_(options) {}

  // Plans the reads. Errors: a target that cannot get the values.
  void plan(const NamedTensors& targets) {
    for (const auto& [name, t] : targets) plan_tensor(name, t);
  }

  // Opens the files, and verifies what is to be read of them. Changes nothing.
  void prepare() {
    for (const Read& read : reads_) {
      PartFile& file = open(read.source->file);
      file.part(*read.name, read.source->box, read.tensor->dtype);  // throws where the file has another one
      file.want(*read.name, read.block.from, read.block.sizes);
      if (!options_.verify) progress_.bytes_total += bytes_of(read);
    }
    if (!options_.verify) return;
    std::vector<const PartFile*> files;
    for (const auto& [name, file] : files_) files.push_back(file.get());
    const WantedChunks chunks(files);
    progress_.bytes_total = chunks.bytes();
    chunks.verify([&](int64_t bytes) { note(bytes); });
  }

  // REQUIRES: prepare().
  void read() {
    c10::AutoGradMode no_grad(false);
    LocalGuard guard;
    for (const Read& read : reads_) {
      // Verified data is still in memory, unless it exceeds that.
      at::Tensor from = open(read.source->file).part(*read.name, read.source->box, read.tensor->dtype), to = read.part;
      for (size_t d = 0; d < read.block.sizes.size(); ++d) {
        from = from.narrow(d, read.block.from[d], read.block.sizes[d]);
        to = to.narrow(d, read.block.to[d], read.block.sizes[d]);
      }
      to.copy_(from);
      if (!options_.verify) note(bytes_of(read));
    }
    for (const Read& read : reads_) wait_for_device(read.part);
  }

  // An error of the progress function while values were copied, which must not interrupt copying.
  void rethrow() const {
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  static int64_t bytes_of(const Read& read) {
    int64_t bytes = static_cast<int64_t>(c10::elementSize(read.tensor->dtype));
    for (const int64_t size : read.block.sizes) bytes *= size;
    return bytes;
  }

  // Reports the first read of the data from the disk, which takes most of the time.
  void note(int64_t bytes) {
    progress_.bytes_done += bytes;
    try {
      if (options_.progress && !thrown_) options_.progress(progress_);
    } catch (...) {
      if (options_.verify) throw;  // nothing is changed yet
      thrown_ = std::current_exception();
    }
  }

  void plan_tensor(const std::string& name, const at::Tensor& t) {
    const auto& [known, tensor] = *manifest_.tensors.find(name);
    TORCH_CHECK_VALUE(tensor.dtype == t.scalar_type() || c10::canCast(tensor.dtype, t.scalar_type()), "'", name,
                      "' is of ", tensor.dtype, " in the checkpoint, which is not cast to ", t.scalar_type());
    if (!is_dtensor(t)) return plan_part(known, tensor, part_of({Shape(t.dim(), 0), tensor.shape}), t.variable_data());
    check_write(t, kLoadCheckpoint);
    const DTensorMeta& meta = meta_for_write(t);
    TORCH_CHECK_VALUE(!meta.spec->has_partial(), "'", name, "' is ", meta.spec->to_string(),
                      ", which holds addends and no values: redistribute it first");
    for (size_t i = 0; i < meta.locals.size(); ++i)
      plan_part(known, tensor, meta.spec->local_layout(static_cast<int64_t>(i)), meta.locals[i]);
  }

  void plan_part(const std::string& name, const ManifestTensor& tensor, const LocalLayout& part,
                 const at::Tensor& memory) {
    TORCH_CHECK_VALUE(memory.layout() == at::kStrided && !memory.is_meta(), "'", name, "' has no values: it is ",
                      memory.layout(), " on ", memory.device());
    TORCH_CHECK_VALUE(at::has_internal_overlap(memory) != at::MemOverlap::Yes, "'", name,
                      "' is expanded: several of its elements are one. Load into the tensor that it is of");
    for (const ManifestBox& source : tensor.boxes) {
      for (Block& block : overlap(part_of(source.box), part))
        reads_.push_back({&name, &tensor, &source, std::move(block), memory});
    }
  }

  PartFile& open(const std::string& name) {
    auto& file = files_[name];
    if (!file) file = std::make_unique<PartFile>(absl::StrCat(folder_, "/", name), manifest_.files.at(name));
    return *file;
  }

  const std::string& folder_;
  const Manifest& manifest_;
  const LoadCheckpointOptions& options_;
  std::map<std::string, std::unique_ptr<PartFile>> files_;
  std::vector<Read> reads_;
  CheckpointProgress progress_;
  std::exception_ptr thrown_;
};

// All processes must see one checkpoint: folders of one name may be of different machines.
void check_same(const DeviceMesh& ranks, const std::string& folder, const Manifest& manifest,
                const std::string& error) {
  agree_that_all_is_well(ranks, error, kLoadCheckpoint);
  const std::string text = to_text(manifest);
  const auto sums = gather_texts(ranks, checksum_text(checksum(text.data(), text.size())), kLoadCheckpoint);
  for (size_t rank = 1; rank < sums.size(); ++rank) {
    TORCH_CHECK(sums[rank] == sums[0], "[", kLoadCheckpoint, "] '", folder,
                "' is one checkpoint for rank 0 and another for rank ", rank,
                "; the folder must be one that all processes share, and no process may save to it meanwhile");
  }
}

std::vector<at::Tensor> values_of(const NamedTensors& tensors) {
  std::vector<at::Tensor> values;
  for (const auto& [name, t] : tensors) values.push_back(t);
  return values;
}

}  // namespace

CheckpointMismatch load_checkpoint(const std::string& folder, CheckpointContents& contents,
                                   const LoadCheckpointOptions& options) {
  c10::AutoGradMode no_grad(false);
  const World world = world_of(contents, options.world);
  Manifest manifest;
  std::string error;
  try {
    manifest = read_manifest(folder);
  } catch (const std::exception& e) {
    error = message_of(e);
  }
  const DeviceMesh ranks = ranks_of(world);
  check_same(ranks, folder, manifest, error);

  // If any process fails, nothing has changed yet on all of them.
  std::optional<LoadTargets> targets;
  Loader loader(folder, manifest, options);
  try {
    targets.emplace(contents, manifest);
    check_world(targets->tensors(), world);
    TORCH_CHECK_VALUE(!options.strict || !targets->mismatch().any(), "'", folder,
                      "' does not fit: ", targets->mismatch().to_string(),
                      ". With strict = false what fits is loaded and the rest is returned");
    loader.plan(targets->tensors());
  } catch (const std::exception& e) {
    error = absl::StrCat("[", kLoadCheckpoint, "] ", message_of(e));
  }
  agree_that_all_is_well(ranks, error, kLoadCheckpoint);
  error = run_on_all(
      ranks, [&] { loader.prepare(); }, kLoadCheckpoint);
  TORCH_CHECK(error.empty(), "[", kLoadCheckpoint, "] ", error);
  write_parts(values_of(targets->tensors()), kLoadCheckpoint, [&] {
    error = run_on_all(
        ranks, [&] { loader.read(); }, kLoadCheckpoint);
    TORCH_CHECK(error.empty(), "[", kLoadCheckpoint, "] the contents are now partly those of the checkpoint: ", error);
  });
  targets->commit();
  loader.rethrow();
  return targets->mismatch();
}

}  // namespace dtensor
