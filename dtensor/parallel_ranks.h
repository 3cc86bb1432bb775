// Several ranks of one process (World::local on CPUs) computing at the same time.
//
//   set_parallel_ranks(true);
//   const DeviceMesh mesh(World::local(8), {8}, {"tp"});
//   model->forward(tokens);   // operators with enough work: the ranks on LibTorch's threads, each on one
#pragma once

namespace dtensor {

// For the whole process, from the next call of an operator on; off at first, when ranks compute one after the other and
// each on all threads of LibTorch. An operator computed at the same time gives bit for bit what it gives with
// at::set_num_threads(1), whatever the number of threads; one rank after the other may give other bits, as LibTorch
// adds up large tensors in another order on several threads. An operator runs rank by rank all the same if it has
// little work, is a view or random (tagged nondeterministic_seeded, or with a generator), exchanges elements while it
// computes, has no sharding rule, or runs on GPUs, which compute while the CPU goes on. Local kernels of rules
// (OpRule::local) and custom operators must allow calls from several threads at once. Thread-safe.
void set_parallel_ranks(bool parallel);
bool parallel_ranks();

}  // namespace dtensor
