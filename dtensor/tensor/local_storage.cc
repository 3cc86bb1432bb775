#include "dtensor/tensor/local_storage.h"

namespace dtensor::internal {

LocalStorage::LocalStorage(const World& w, int64_t bytes) : use_of_world(w.use()), hold(w.memory(), bytes) {}
[[gnu::hot]] LocalStorage::LocalStorage(const LocalStorage& of_same_world, int64_t bytes)
    : use_of_world(of_same_world.use_of_world), hold(of_same_world.hold.meter(), bytes) {}
[[gnu::hot]] LocalStorage::~LocalStorage() = default;

}  // namespace dtensor::internal
