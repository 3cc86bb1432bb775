// Other libraries' collectives between the processes of a job, for the same changes of layout written by hand.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace dtensor::benchmarks {

// As the table names them.
inline constexpr char kGloo[] = "Gloo", kMpi[] = "Open MPI", kScalapack[] = "ScaLAPACK";

// Tensors are contiguous, of float32. Pieces of ranks lie one after the other along dim 0.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  virtual void all_reduce(const at::Tensor& in, at::Tensor& out) = 0;  // may be one tensor
  virtual void all_gather(const at::Tensor& in, at::Tensor& out) = 0;
  virtual void reduce_scatter(const at::Tensor& in, at::Tensor& out) = 0;
  virtual void all_to_all(const at::Tensor& in, at::Tensor& out) = 0;
};

// c10d's Gloo, on the loopback interface. The ranks meet in the file `store`, which the first one makes.
std::unique_ptr<Peer> make_gloo_peer(int rank, int size, const std::string& store);

// Open MPI. Null where mpirun did not start this process.
std::unique_ptr<Peer> make_mpi_peer();

// ScaLAPACK's copy between block-cyclic layouts, psgemr2d.
class Scalapack {
 public:
  virtual ~Scalapack() = default;
  // Of an n x n matrix in float32: rows of each rank to columns of each rank, in order.
  virtual void rows_to_columns(const at::Tensor& in, at::Tensor& out, int64_t n) = 0;
};
// Null where mpirun did not start this process, or where the library is not installed. Error: it cannot be loaded.
// REQUIRES: there is a peer of make_mpi_peer().
std::unique_ptr<Scalapack> make_scalapack(int size);

}  // namespace dtensor::benchmarks
