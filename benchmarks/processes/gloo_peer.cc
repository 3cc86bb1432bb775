#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "benchmarks/loopback_gloo.h"
#include "benchmarks/processes/peers.h"

namespace dtensor::benchmarks {
namespace {

class GlooPeer final : public Peer {
 public:
  explicit GlooPeer(c10::intrusive_ptr<c10d::Backend> gloo) : gloo_(std::move(gloo)) {}
  std::string name() const override { return kGloo; }
  void all_reduce(const at::Tensor& in, at::Tensor& out) override {
    if (!out.is_same(in)) out.copy_(in);  // Gloo's reduces in place
    std::vector<at::Tensor> tensors = {out};
    gloo_->allreduce(tensors)->wait();
  }
  void all_gather(const at::Tensor& in, at::Tensor& out) override {
    at::Tensor input = in;
    gloo_->_allgather_base(out, input)->wait();
  }
  void reduce_scatter(const at::Tensor& in, at::Tensor& out) override {
    at::Tensor input = in;
    gloo_->_reduce_scatter_base(out, input)->wait();
  }
  void all_to_all(const at::Tensor& in, at::Tensor& out) override {
    at::Tensor input = in;
    std::vector<int64_t> even;
    gloo_->alltoall_base(out, input, even, even)->wait();
  }

 private:
  const c10::intrusive_ptr<c10d::Backend> gloo_;
};

}  // namespace

std::unique_ptr<Peer> make_gloo_peer(int rank, int size, const std::string& store) {
  return std::make_unique<GlooPeer>(make_loopback_gloo(c10::make_intrusive<c10d::FileStore>(store, size), rank, size));
}

}  // namespace dtensor::benchmarks
