#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checkpoint/agreement.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/atomic_file.h"
#include "checkpoint/formats/checksums.h"
#include "checkpoint/sharded/contents.h"
#include "checkpoint/sharded/folder.h"
#include "checkpoint/sharded/manifest.h"
#include "checkpoint/sharded/part_file.h"
#include "checkpoint/sharded/planned_files.h"
#include "checkpoint/sharded/wait_for_device.h"
#include "comm/error_message.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

using Json = nlohmann::json;

constexpr char kSaveCheckpoint[] = "save_checkpoint";

std::string new_id() {
  std::random_device device;
  const uint64_t id = uint64_t{device()} << 32 | device();
  return absl::StrCat(absl::Hex(id, absl::kZeroPad16));
}

}  // namespace

// A save from its beginning, on all processes alike, to its end.
struct PendingCheckpoint::State {
  const pid_t process = ::getpid();
  std::string folder;
  World world;
  FolderLock lock;
  Manifest manifest;  // with this process's files only, until all have reported theirs
  std::vector<PlannedFile> files;
  std::function<void(const CheckpointProgress&)> progress;
  CheckpointProgress done;
  std::string error;  // of this process
  std::thread writer;
  std::atomic<bool> written{false};
  bool over = false;
  bool committed = false;

  ~State() {
    if (writer.joinable()) writer.join();
  }
  // Not a child that was forked meanwhile.
  bool is_here() const { return ::getpid() == process; }
  bool is_first() const { return !world.defined() || world.owned_ranks().front() == 0; }
  std::string path(const std::string& name) const { return absl::StrCat(folder, "/", name); }

  std::string fingerprint() const;
  void begin(const CheckpointContents& contents, const SaveCheckpointOptions& options);
  void agree(const Json& mine);
  void name_files(const std::string& id);
  void snapshot();
  void start(bool copy) noexcept;
  void write() noexcept;
  void finish();
  bool all_have_written() const;
  void check_is_here() const;
  std::string collect_files(const DeviceMesh& ranks);
  void commit() const;
  bool is_there() const;
  void remove_own() noexcept;
};

// Values that must be equal on all processes.
std::string PendingCheckpoint::State::fingerprint() const {
  const std::string all = to_text(manifest);
  return checksum_text(checksum(all.data(), all.size()));
}

// Errors of one process are reported to the others before anything is waited for.
void PendingCheckpoint::State::begin(const CheckpointContents& contents, const SaveCheckpointOptions& options) {
  c10::AutoGradMode no_grad(false);
  world = world_of(contents, options.world);
  progress = options.progress;
  Json mine = {{"id", new_id()}};
  try {
    const NamedState state = state_of(contents);
    check_world(state.tensors, world);
    PlannedSave planned = plan_files(state.tensors, world);
    files = std::move(planned.files);
    for (const PlannedFile& file : files) done.bytes_total += file.bytes();
    manifest.tensors = std::move(planned.tensors);
    manifest.settings = state.settings;
    manifest.values = contents.values;
    mine["fingerprint"] = fingerprint();
    if (is_first()) {
      make_folder(folder);
      lock = FolderLock(folder);
    }
  } catch (const std::exception& e) {
    mine["error"] = message_of(e);
  }
  agree(mine);
}

void PendingCheckpoint::State::agree(const Json& mine) {
  std::vector<Json> all;
  for (const std::string& text :
       gather_texts(ranks_of(world), mine.dump(-1, ' ', false, Json::error_handler_t::replace), kSaveCheckpoint))
    all.push_back(Json::parse(text));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK(!all[rank].contains("error"), "[", kSaveCheckpoint, "] '", folder,
                "': ", all.size() > 1 ? c10::str("rank ", rank, ": ") : "", all[rank]["error"].get<std::string>());
  }
  for (size_t rank = 1; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank]["fingerprint"] == all[0]["fingerprint"], "[", kSaveCheckpoint, "] '", folder,
                      "': rank ", rank,
                      " saves other tensors, layouts, settings or values than rank 0; all processes save the same");
  }
  name_files(all[0]["id"].get<std::string>());
}

void PendingCheckpoint::State::name_files(const std::string& id) {
  manifest.id = id;
  manifest.files.clear();
  for (auto& [name, tensor] : manifest.tensors) {
    for (ManifestBox& box : tensor.boxes) box.file = id + box.file;
  }
  for (PlannedFile& file : files) file.name = id + file.name;
}

// So that training may change what is being written.
void PendingCheckpoint::State::snapshot() {
  LocalGuard guard;
  for (PlannedFile& file : files) {
    for (TensorPart& p : file.parts) {
      const at::Tensor values = p.values.resolve_conj().resolve_neg();
      p.values = values.is_cpu() ? values.clone(at::MemoryFormat::Contiguous) : values.cpu().contiguous();
    }
  }
}

// A process that lacks the memory, or a thread, reports it in finish().
void PendingCheckpoint::State::start(bool copy) noexcept {
  try {
    for (const PlannedFile& file : files) {
      for (const TensorPart& p : file.parts) wait_for_device(p.values);
    }
    if (copy) snapshot();
    writer = std::thread([this] { write(); });
  } catch (const std::exception& e) {
    error = message_of(e);
    written.store(true);
  }
}

// Writes this process' files. Errors are reported in finish().
void PendingCheckpoint::State::write() noexcept {
  try {
    for (PlannedFile& file : files) {
      manifest.files[file.name] = write_part_file(path(file.name), file.parts, [&](int64_t bytes) {
        done.bytes_done += bytes;
        if (progress) progress(done);
      });
      file.parts.clear();
    }
  } catch (const std::exception& e) {
    error = message_of(e);
  } catch (...) {
    error = "the progress function threw something that is no std::exception";
  }
  written.store(true);
}

// Files are removed only after a failure on which all processes have agreed. If the processes cannot communicate any
// more, it is not known whether the checkpoint is complete: the next save removes files that do not belong to it.
void PendingCheckpoint::State::finish() {
  TORCH_CHECK(!over, "[", kSaveCheckpoint, "] '", folder, "': the save has ended before, by wait() or try_commit()");
  over = true;
  const FolderLock held = std::move(lock);
  const DeviceMesh ranks = ranks_of(world);
  std::string wrong = run_on_all(
      ranks,
      [&] {
        if (writer.joinable()) writer.join();
      },
      kSaveCheckpoint);
  if (wrong.empty()) wrong = collect_files(ranks);
  if (wrong.empty())
    wrong = run_on_all(
        ranks, [&] { return is_first() ? commit() : void(); }, kSaveCheckpoint);
  if (!wrong.empty()) {
    remove_own();
    TORCH_CHECK(false, "[", kSaveCheckpoint, "] ", wrong);
  }
  committed = true;
  if (is_first()) remove_other_part_files(folder, manifest);
}

bool PendingCheckpoint::State::all_have_written() const {
  const auto all = gather_texts(ranks_of(world), written.load() ? "written" : "", kSaveCheckpoint);
  return std::none_of(all.begin(), all.end(), [](const std::string& text) { return text.empty(); });
}

void PendingCheckpoint::State::check_is_here() const {
  TORCH_CHECK(is_here(), "[", kSaveCheckpoint, "] '", folder, "': the save is being written by process ", process,
              ", of which this one, ", ::getpid(), ", was forked");
}

// Every process learns of every other's files, and whether they are written. Returns the first error, "" if all are.
std::string PendingCheckpoint::State::collect_files(const DeviceMesh& ranks) {
  Json mine = Json::object();
  for (const auto& [name, file] : manifest.files) mine["files"][name] = {file.bytes, checksum_text(file.header_sum)};
  if (!error.empty()) mine["error"] = error;
  const auto all = gather_texts(ranks, mine.dump(-1, ' ', false, Json::error_handler_t::replace), kSaveCheckpoint);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Json theirs = Json::parse(all[rank]);
    if (theirs.contains("error"))
      return (all.size() > 1 ? c10::str("rank ", rank, ": ") : "") + theirs["error"].get<std::string>();
    if (!theirs.contains("files")) continue;
    for (const auto& [name, file] : theirs["files"].items())
      manifest.files[name] = {file[0].get<int64_t>(), parse_sums(file[1].get<std::string>(), 1)[0]};
  }
  return "";
}

// Makes the checkpoint be there. After an error it is not.
void PendingCheckpoint::State::commit() const {
  for (const auto& [name, file] : manifest.files) {
    struct stat info {};
    TORCH_CHECK(stat(path(name).c_str(), &info) == 0 && info.st_size == file.bytes, "'", path(name),
                "', which another process wrote, is not seen by that of rank 0; the folder must be one that all "
                "processes share");
  }
  const std::string text = to_text(manifest);
  AtomicFile out(path(kManifestName));
  out.write(text.data(), text.size());
  try {
    out.commit();
  } catch (const c10::Error& e) {
    if (!is_there()) throw;
    TORCH_WARN("[", kSaveCheckpoint, "] ", e.what_without_backtrace());  // it may not survive a power failure
  }
}

bool PendingCheckpoint::State::is_there() const {
  try {
    return read_manifest(folder).id == manifest.id;
  } catch (const c10::Error&) {
    return false;
  }
}

void PendingCheckpoint::State::remove_own() noexcept {
  for (const PlannedFile& file : files) std::remove(path(file.name).c_str());
}

PendingCheckpoint::PendingCheckpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
PendingCheckpoint::PendingCheckpoint(PendingCheckpoint&&) noexcept = default;
PendingCheckpoint& PendingCheckpoint::operator=(PendingCheckpoint&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

PendingCheckpoint::~PendingCheckpoint() {
  if (!state_) return;
  if (!state_->is_here()) {
    state_.release();  // the thread, the lock and the files are the parent's
    return;
  }
  if (state_->over) return;
  if (state_->writer.joinable()) state_->writer.join();
  state_->remove_own();  // the others do not know these files yet
}

bool PendingCheckpoint::written() const { return state_->written.load(); }
void PendingCheckpoint::wait() {
  state_->check_is_here();
  state_->finish();
}
bool PendingCheckpoint::try_commit() {
  state_->check_is_here();
  if (state_->committed) return true;
  if (!state_->over && !state_->all_have_written()) return false;
  state_->finish();
  return true;
}

void save_checkpoint(const std::string& folder, const CheckpointContents& contents,
                     const SaveCheckpointOptions& options) {
  PendingCheckpoint::State state;
  state.folder = folder;
  state.begin(contents, options);
  state.start(/*copy=*/false);
  state.finish();
}

PendingCheckpoint save_checkpoint_async(const std::string& folder, const CheckpointContents& contents,
                                        const SaveCheckpointOptions& options) {
  auto state = std::make_unique<PendingCheckpoint::State>();
  state->folder = folder;
  state->begin(contents, options);
  state->start(/*copy=*/true);
  return PendingCheckpoint(std::move(state));
}

}  // namespace dtensor
