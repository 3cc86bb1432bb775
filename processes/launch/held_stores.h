// The stores of files that this process holds besides those of its worlds.
//
// c10d's FileStore lowers a count in the file when it is destroyed, and then removes the file if the count is 0.
// Between the two another rank may open the file for its next world. So each process that has made a world there holds
// a store of the file until it exits.
#pragma once

#include "processes/job/bounded_store.h"

namespace dtensor::internal {

class StoreFile;

// Thread-safe. A store of the same file is held once; of a file that was removed and made again, the new one's.
// BoundedStore: to give it up waits a second at most for a file that is locked.
void hold_store_until_exit(const StoreFile& file, c10::intrusive_ptr<BoundedStore> store);

// This process stays counted in the file after its end, so that the file stays. Thread-safe.
void hold_store_for_good(c10::intrusive_ptr<BoundedStore> store);

}  // namespace dtensor::internal
