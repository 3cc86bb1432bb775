// Open MPI and ScaLAPACK by their symbols: their headers are in packages of their own, and this benchmark must build
// without them.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <exception>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/processes/peers.h"

namespace dtensor::benchmarks {
namespace {

constexpr char kMpiLibrary[] = "libmpi.so.40", kScalapackLibrary[] = "libscalapack-openmpi.so.2.2";
const void* const kInPlace = reinterpret_cast<const void*>(1);  // Open MPI's MPI_IN_PLACE

class Library {
 public:
  // Null where it is not installed. Error: it cannot be loaded, since it lacks another library, for instance.
  static void* open(const char* name) {
    void* const handle = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    const std::string error = handle != nullptr ? "" : ::dlerror();
    TORCH_CHECK(handle != nullptr || absl::StartsWith(error, absl::StrCat(name, ": cannot open")), error);
    return handle;
  }
  Library(const char* name, void* handle) : name_(name), handle_(handle) {}

  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }
  void* symbol(const char* name) const {
    void* const address = ::dlsym(handle_, name);
    TORCH_CHECK(address != nullptr, name_, " lacks ", name);
    return address;
  }

 private:
  const char* name_;
  void* handle_;
};

void check(int error, const char* call) { TORCH_CHECK(error == 0, call, " failed with error ", error); }

int count(const at::Tensor& t) { return static_cast<int>(t.numel()); }

class MpiPeer final : public Peer {
 public:
  explicit MpiPeer(const Library& mpi)
      : world_(mpi.symbol("ompi_mpi_comm_world")),
        floats_(mpi.symbol("ompi_mpi_float")),
        sum_(mpi.symbol("ompi_mpi_op_sum")),
        finalize_(mpi.function<int()>("MPI_Finalize")),
        all_reduce_(mpi.function<Reduce>("MPI_Allreduce")),
        reduce_scatter_(mpi.function<Reduce>("MPI_Reduce_scatter_block")),
        all_gather_(mpi.function<Move>("MPI_Allgather")),
        all_to_all_(mpi.function<Move>("MPI_Alltoall")) {
    check(mpi.function<int(int*, char***)>("MPI_Init")(nullptr, nullptr), "MPI_Init");
    check(mpi.function<int(void*, int*)>("MPI_Comm_size")(world_, &size_), "MPI_Comm_size");
  }
  ~MpiPeer() override {
    if (std::uncaught_exceptions() == 0) finalize_();  // which waits for the other ranks
  }

  std::string name() const override { return kMpi; }
  void all_reduce(const at::Tensor& in, at::Tensor& out) override {
    const void* const from = in.is_same(out) ? kInPlace : in.const_data_ptr();
    check(all_reduce_(from, out.mutable_data_ptr(), count(in), floats_, sum_, world_), "MPI_Allreduce");
  }
  void all_gather(const at::Tensor& in, at::Tensor& out) override {
    check(all_gather_(in.const_data_ptr(), count(in), floats_, out.mutable_data_ptr(), count(in), floats_, world_),
          "MPI_Allgather");
  }
  void reduce_scatter(const at::Tensor& in, at::Tensor& out) override {
    check(reduce_scatter_(in.const_data_ptr(), out.mutable_data_ptr(), count(out), floats_, sum_, world_),
          "MPI_Reduce_scatter_block");
  }
  void all_to_all(const at::Tensor& in, at::Tensor& out) override {
    const int piece = count(in) / size_;
    check(all_to_all_(in.const_data_ptr(), piece, floats_, out.mutable_data_ptr(), piece, floats_, world_),
          "MPI_Alltoall");
  }

 private:
  using Reduce = int(const void*, void*, int, void*, void*, void*);
  using Move = int(const void*, int, void*, void*, int, void*, void*);

  void *const world_, *const floats_, *const sum_;
  int (*const finalize_)();
  Reduce *const all_reduce_, *const reduce_scatter_;
  Move *const all_gather_, *const all_to_all_;
  int size_ = 0;
};

// How a matrix is divided: BLACS's description.
using Description = std::array<int, 9>;

class ScalapackLibrary final : public Scalapack {
 public:
  ScalapackLibrary(const Library& library, int size)
      : size_(size),
        copy_(library.function<Copy>("Cpsgemr2d")),
        exit_grid_(library.function<void(int)>("Cblacs_gridexit")) {
    const auto get = library.function<void(int, int, int*)>("Cblacs_get");
    const auto init_grid = library.function<void(int*, const char*, int, int)>("Cblacs_gridinit");
    for (int* context : {&in_a_row_, &in_a_column_}) get(-1, 0, context);
    init_grid(&in_a_row_, "Row", 1, size);
    init_grid(&in_a_column_, "Row", size, 1);
  }
  ~ScalapackLibrary() override {
    if (std::uncaught_exceptions() > 0) return;  // these wait for the other ranks
    exit_grid_(in_a_row_);
    exit_grid_(in_a_column_);
  }

  // ScaLAPACK's matrices are in the order of Fortran: ours, transposed.
  void rows_to_columns(const at::Tensor& in, at::Tensor& out, int64_t size) override {
    const int n = static_cast<int>(size), part = n / size_;
    const Description from = {1, in_a_row_, n, n, n, part, 0, 0, n}, to = {1, in_a_column_, n, n, part, n, 0, 0, part};
    copy_(n, n, in.const_data_ptr<float>(), 1, 1, from.data(), out.mutable_data_ptr<float>(), 1, 1, to.data(),
          in_a_row_);
  }

 private:
  using Copy = void(int rows, int columns, const float* in, int row, int column, const int* in_description, float* out,
                    int to_row, int to_column, const int* out_description, int context);

  const int size_;
  Copy* const copy_;
  void (*const exit_grid_)(int);
  int in_a_row_ = 0, in_a_column_ = 0;  // BLACS's contexts
};

bool started_by_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

}  // namespace

std::unique_ptr<Peer> make_mpi_peer() {
  if (!started_by_mpirun()) return nullptr;
  void* const handle = Library::open(kMpiLibrary);
  TORCH_CHECK(handle != nullptr, "there is an mpirun, but no ", kMpiLibrary);
  return std::make_unique<MpiPeer>(Library(kMpiLibrary, handle));
}

std::unique_ptr<Scalapack> make_scalapack(int size) {
  void* const handle = started_by_mpirun() ? Library::open(kScalapackLibrary) : nullptr;
  return handle == nullptr ? nullptr : std::make_unique<ScalapackLibrary>(Library(kScalapackLibrary, handle), size);
}

}  // namespace dtensor::benchmarks
