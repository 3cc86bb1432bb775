#include "dtensor/tensor/representation.h"

#include <new>

#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/host_parts.h"
#include "dtensor/tensor/match_strides.h"
#include "plan/sized_impl.h"

namespace dtensor::internal {
namespace {

constexpr char kNoStorage[] =
    "a distributed tensor, whose data is in the local tensors of its ranks: use dtensor::full_tensor(t) for the whole "
    "value, dtensor::to_local(t) for the parts, std::cout << dtensor::DTensor(t) to print it, dtensor::save(t, path) "
    "to store it, or a module or optimizer that has such tensors";

constexpr char kMadeInScope[] =
    ". A factory function in a MeshScope made it: to fill it through a pointer, make it in a PlainFactories scope, where "
    "it is plain, and distribute_tensor() it";

// The error text for data_ptr(), and so for accessor(), operator<< and torch::save. (LibTorch uses
// tensorimpl_type_name() for storage() only; a parameter that was made distributed in place has LibTorch's class and
// keeps this text.)
void explain_access(c10::TensorImpl& impl) {
  static auto& mutex = *new std::mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const auto* meta = static_cast<const DTensorMeta*>(impl.get_backend_meta());
  impl.release_storage_and_set_meta_custom_data_ptr_error_msg_(
      c10::str("Cannot access the data of ", kNoStorage, meta->from_factory ? kMadeInScope : ""));
}

// Adds error texts to TensorImpl, and holds its ExtraMeta, which TensorImpl would allocate.
class DTensorImpl final : public SizedImpl {
 public:
  DTensorImpl(c10::DispatchKeySet keys, caffe2::TypeMeta dtype, c10::Device device) : SizedImpl(keys, dtype, device) {
    extra_meta_.reset(&own_extra_meta_);
  }
  [[gnu::hot]] ~DTensorImpl() override { forget_own_extra_meta(); }

  // TensorImpl's constructor makes an inference tensor inside inference mode, and a normal one outside of it; a view
  // must match its base.
  void match_inference_mode(const at::Tensor& base) {
    if (is_inference() == base.is_inference()) return;
    const auto of_normal = c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    if (is_inference()) {
      key_set_ = key_set_ | (base.key_set() & of_normal);
      set_version_counter(c10::VariableVersion(0));
    } else {
      key_set_ = key_set_ - of_normal;
      set_version_counter(c10::VariableVersion(c10::VariableVersion::DISABLED));
    }
  }

  // Another handle, made without calling an operator: for Tensor::data(), and for autograd's saved tensors.
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override {
    note_shared();
    return c10::TensorImpl::shallow_copy_and_detach(version, allow_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_change) const override {
    note_shared();
    return c10::TensorImpl::shallow_copy_and_detach(std::move(version), allow_change);
  }

  // For Tensor::set_data(): TensorImpl's function allocates another ExtraMeta.
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override {
    if (impl.get() == this) return;
    forget_own_extra_meta();
    SizedImpl::shallow_copy_from(impl);
    own_extra_meta_.backend_meta_.reset();
    explained_.store(false, std::memory_order_release);
  }

  // Called before the data is accessed: the text is set only then, as it would be too expensive for every tensor.
  bool has_storage() const override {
    if (!extra_meta_ || !extra_meta_->backend_meta_) return SizedImpl::has_storage();  // set_data() made it plain
    if (!explained_.load(std::memory_order_acquire)) {
      static auto* mutex = new std::mutex;
      std::lock_guard lock(*mutex);
      if (!explained_.load(std::memory_order_relaxed)) {
        explain_access(*const_cast<DTensorImpl*>(this));
        explained_.store(true, std::memory_order_release);
      }
    }
    return false;
  }

 protected:
  const char* tensorimpl_type_name() const override { return kNoStorage; }

 private:
  void note_shared() const {
    if (!extra_meta_ || !extra_meta_->backend_meta_) return;
    const auto& meta = static_cast<const DTensorMeta&>(*extra_meta_->backend_meta_);
    __builtin_prefetch(meta.locals.data());  // usually read next
    meta.storage->shared.store(true, std::memory_order_relaxed);
  }

  // TensorImpl would delete it.
  void forget_own_extra_meta() {
    if (extra_meta_.get() == &own_extra_meta_) static_cast<void>(extra_meta_.release());
  }

  c10::ExtraMeta own_extra_meta_;
  mutable std::atomic<bool> explained_{false};
};

c10::DispatchKeySet key_set(c10::DeviceType device) {
  const auto backend = device == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return c10::DispatchKeySet(backend) | kBothDTensorKeys;
}

// Parts in host memory take no memory of ranks on GPUs, and calls that read them take the long way.
void note_offload(DTensorMeta& meta) {
  if (!is_offloaded(meta.spec->mesh().world(), meta.locals)) return;
  meta.may_need_sync = true;
  meta.storage->hold.resize(0);
}

using MetaPtr = c10::intrusive_ptr<DTensorMeta>;

// Takes `made`, and sets what follows from its members.
[[gnu::hot]] MetaPtr adopt_meta(DTensorMeta* made) {
  MetaPtr meta = MetaPtr::unsafe_steal_from_new(made);
  meta->may_need_sync = meta->arriving != nullptr || meta->storage->observer != nullptr;
  if (is_offload_used()) note_offload(*meta);
  return meta;
}

// For a tensor whose storage exists already.
[[gnu::hot]] MetaPtr meta_of_storage(std::shared_ptr<LocalStorage>&& storage, SpecPtr&& spec, RankTensors&& locals,
                                     std::shared_ptr<CommWork>&& arriving) {
  void* memory = ::operator new(sizeof(DTensorMeta));
  return adopt_meta(
      ::new (memory) DTensorMeta(std::move(spec), std::move(locals), std::move(storage), std::move(arriving), false));
}

// What a result allocates at once. Aliases and weak references to the storage keep the allocation, but not the contents
// of the meta.
struct StorageAndMeta {
  template <typename WorldOrStorage>
  StorageAndMeta(const WorldOrStorage& world, int64_t bytes) : storage(world, bytes) {}
  LocalStorage storage;
  alignas(DTensorMeta) unsigned char meta[sizeof(DTensorMeta)];
};

// Of the first tensor of a memory. `world`: as LocalStorage's constructors take it.
template <typename WorldOrStorage>
[[gnu::hot]] MetaPtr meta_of_new_memory(const WorldOrStorage& world, SpecPtr&& spec, RankTensors&& locals,
                                        std::shared_ptr<CommWork>&& arriving = nullptr) {
  auto both = std::make_shared<StorageAndMeta>(world, spec->max_local_bytes());
  void* memory = both->meta;
  LocalStorage* storage = &both->storage;
  std::shared_ptr<LocalStorage> owner(std::move(both), storage);
  return adopt_meta(::new (memory)
                        DTensorMeta(std::move(spec), std::move(locals), std::move(owner), std::move(arriving), true));
}

// `storage`: null for a memory of its own.
MetaPtr make_named_meta(SpecPtr spec, RankTensors locals, std::shared_ptr<LocalStorage> storage,
                        std::shared_ptr<const std::string> name, std::shared_ptr<CommWork> arriving = nullptr) {
  const World& world = spec->mesh().world();
  MetaPtr meta = storage ? meta_of_storage(std::move(storage), std::move(spec), std::move(locals), std::move(arriving))
                         : meta_of_new_memory(world, std::move(spec), std::move(locals), std::move(arriving));
  meta->name = std::move(name);
  return meta;
}

[[gnu::hot]] c10::intrusive_ptr<DTensorImpl> make_impl(MetaPtr&& meta) {
  const Spec& spec = *meta->spec;
  const c10::Device device = spec.mesh().device();
  auto impl = c10::make_intrusive<DTensorImpl>(key_set(device.type()), c10::scalarTypeToTypeMeta(spec.dtype()), device);
  impl->copy_first_sizes(spec.sized_impl());
  impl->set_storage_access_should_throw();
  impl->set_backend_meta(std::move(meta));
  return impl;
}

}  // namespace

[[gnu::hot]] void DTensorMeta::operator delete(DTensorMeta* meta, std::destroying_delete_t) {
  const bool is_beside = meta->is_beside_storage;
  const std::shared_ptr<const void> storage = std::move(meta->storage);  // frees `meta`, too, if that is beside it
  meta->~DTensorMeta();
  if (!is_beside) ::operator delete(meta);
}

[[gnu::hot]] DTensorMeta::~DTensorMeta() = default;

void wait_for_locals(const DTensorMeta& meta) {
  if (!meta.arriving || meta.arriving->done()) return;
  LocalGuard guard;
  meta.arriving->wait();
}

void settle_locals(const DTensorMeta& meta) {
  wait_for_locals(meta);
  if (meta.storage->observer) meta.storage->observer->before_read(*meta.storage);
}

at::Tensor make_dtensor(SpecPtr spec, RankTensors locals, std::shared_ptr<const std::string> name,
                        std::shared_ptr<CommWork> arriving) {
  if (arriving == nullptr) match_strides(*spec, locals);
  return at::Tensor(
      make_impl(make_named_meta(std::move(spec), std::move(locals), nullptr, std::move(name), std::move(arriving))));
}

at::Tensor make_moved(const at::Tensor& origin, SpecPtr spec, RankTensors locals, std::shared_ptr<CommWork> arriving) {
  if (arriving == nullptr) match_strides(*spec, locals);
  const DTensorMeta& of_origin = meta_without_sync(origin);
  MetaPtr meta = meta_of_new_memory(*of_origin.storage, std::move(spec), std::move(locals), std::move(arriving));
  meta->name = of_origin.name;
  return at::Tensor(make_impl(std::move(meta)));
}

at::Tensor make_result(SpecPtr spec, RankTensors locals, std::shared_ptr<CommWork> arriving) {
  at::Tensor result = make_dtensor(std::move(spec), std::move(locals), nullptr, std::move(arriving));
  mutable_hints(result).laid_out_by_engine = true;
  return result;
}

[[gnu::hot]] at::Tensor make_result_of(const at::Tensor& input, SpecPtr&& spec, RankTensors&& locals) {
  // Most results need nothing: asked here, since a call takes 2 % of the time of a small operator.
  if (!spec->sized_impl().is_contiguous() || !all_contiguous(locals)) match_strides(*spec, locals);
  return make_alias_of(input, std::move(spec), std::move(locals));
}

[[gnu::hot]] at::Tensor make_alias_of(const at::Tensor& input, SpecPtr&& spec, RankTensors&& locals) {
  MetaPtr meta = meta_of_new_memory(*meta_without_sync(input).storage, std::move(spec), std::move(locals));
  meta->laid_out_by_engine = true;
  return at::Tensor(make_impl(std::move(meta)));
}

at::Tensor make_alias(SpecPtr spec, RankTensors locals) {
  return at::Tensor(make_impl(make_named_meta(std::move(spec), std::move(locals), nullptr, nullptr)));
}

[[gnu::hot]] at::Tensor make_view(SpecPtr spec, RankTensors locals, const at::Tensor& base, int64_t offset,
                                  std::shared_ptr<LocalStorage> storage, std::shared_ptr<CommWork> arriving) {
  const bool shares = storage == nullptr;
  const DTensorMeta& of_base = meta_without_sync(base);
  if (shares) {
    storage = of_base.storage;
    storage->shared.store(true, std::memory_order_relaxed);
    if (of_base.arriving && !of_base.arriving->done()) arriving = of_base.arriving;
  }
  MetaPtr meta = meta_of_storage(std::move(storage), std::move(spec), std::move(locals), std::move(arriving));
  meta->laid_out_by_engine = shares && of_base.laid_out_by_engine;
  meta->seen = of_base.seen;
  auto impl = make_impl(std::move(meta));
  impl->set_storage_offset(offset);
  impl->match_inference_mode(base);
  return at::Tensor(std::move(impl));
}

namespace {

void set_contents(const at::Tensor& t, MetaPtr meta, int64_t offset) {
  const Spec& spec = *meta->spec;
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(c10::IntArrayRef(spec.sizes().data(), spec.sizes().size()),
                              c10::IntArrayRef(spec.strides().data(), spec.strides().size()));
  impl->set_storage_offset(offset);
  meta->laid_out_by_engine = meta_without_sync(t).laid_out_by_engine;
  impl->set_backend_meta(std::move(meta));
}

}  // namespace

void replace_contents(const at::Tensor& t, SpecPtr spec, RankTensors locals) {
  const DTensorMeta& old = meta_without_sync(t);
  // A collective that is filling in the old contents is ignored.
  auto meta = make_named_meta(std::move(spec), std::move(locals), nullptr, old.name);
  if (CachedState* cached = old.storage->cached.if_made()) {
    std::lock_guard lock(cached->mutex);
    if (!cached->ghost_widths.empty()) meta->storage->cached.make().ghost_widths = cached->ghost_widths;
  }
  set_contents(t, std::move(meta), 0);
}

void share_contents(const at::Tensor& t, const at::Tensor& other) {
  const DTensorMeta& source = meta_for_write(other);
  auto meta = make_named_meta(source.spec, source.locals, source.storage, meta_without_sync(t).name);
  meta->seen = source.seen;
  set_contents(t, std::move(meta), other.storage_offset());
}

void set_name(const at::Tensor& t, std::string name) {
  const DTensorMeta& old = meta_for_write(t);
  auto meta = make_named_meta(old.spec, old.locals, old.storage, std::make_shared<const std::string>(std::move(name)));
  meta->seen = old.seen;
  t.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
  explain_access(*t.unsafeGetTensorImpl());
}

std::string module_of(const DTensorMeta& meta) {
  const auto dot = meta.name ? meta.name->rfind('.') : std::string::npos;
  return dot == std::string::npos ? std::string() : meta.name->substr(0, dot);
}

}  // namespace dtensor::internal
