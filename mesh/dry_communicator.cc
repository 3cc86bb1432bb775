// The communicator of worlds whose peers do not exist: World::abstract, which owns no rank, and World::fake, which owns
// one.
#include <ATen/ops/zeros.h>
#include <c10/core/TensorOptions.h>

#include "mesh/communicator.h"

namespace dtensor {
namespace {

class DryCommunicator final : public Communicator {
 public:
  explicit DryCommunicator(c10::Device device) : device_(device) {}

  bool needs_shapes() const override { return true; }

 protected:
  RankPieces do_all_gather(const CommCall& call, const RankTensors& inputs) override {
    RankPieces results(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int64_t p = 0; p < call.group->size; ++p) {
        results[i].push_back(p == position(call, i) ? inputs[i] : received(call, i, p, inputs[i]));
      }
    }
    return results;
  }

  RankTensors do_all_reduce(const CommCall&, const RankTensors& inputs, ReduceOp) override {
    RankTensors results;
    for (const auto& input : inputs) results.push_back(input.clone());
    return results;
  }

  RankTensors do_reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp) override {
    RankTensors results;
    for (size_t i = 0; i < inputs.size(); ++i) results.push_back(inputs[i][position(call, i)].clone());
    return results;
  }

  RankPieces do_all_to_all(const CommCall& call, const RankPieces& inputs) override {
    RankPieces results(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int64_t p = 0; p < call.group->size; ++p) {
        results[i].push_back(p == position(call, i) ? inputs[i][p] : received(call, i, p, inputs[i][p]));
      }
    }
    return results;
  }

  RankTensors do_broadcast(const CommCall& call, const RankTensors& inputs, int64_t source) override {
    RankTensors results;
    for (size_t i = 0; i < inputs.size(); ++i) results.push_back(from(call, i, source, inputs[i]));
    return results;
  }

  RankTensors do_scatter(const CommCall& call, const RankPieces& inputs, int64_t source) override {
    RankTensors results;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto p = static_cast<size_t>(position(call, i));
      results.push_back(from(call, i, source, p < inputs[i].size() ? inputs[i][p] : at::Tensor()));
    }
    return results;
  }

  RankPieces do_gather(const CommCall& call, const RankTensors& inputs, int64_t target) override {
    RankPieces results(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (position(call, i) != target) continue;
      for (int64_t p = 0; p < call.group->size; ++p) {
        results[i].push_back(p == target ? inputs[i] : received(call, i, p, inputs[i]));
      }
    }
    return results;
  }

  RankTensors do_permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources) override {
    RankTensors results;
    for (size_t i = 0; i < inputs.size(); ++i) {
      results.push_back(from(call, i, sources[position(call, i)], inputs[i]));
    }
    return results;
  }

  void do_barrier(const CommCall&) override {}

 private:
  static int64_t position(const CommCall& call, size_t i) { return call.group->position_of[call.ranks[i]]; }

  // What position `source` sends as the only piece.
  at::Tensor from(const CommCall& call, size_t i, int64_t source, const at::Tensor& input) const {
    return source == position(call, i) ? input.clone() : received(call, i, 0, input);
  }

  // Piece p of what comes from elsewhere: of the announced shape, else shaped as `like`. Zeros rather than
  // uninitialized memory, because what comes may be used as indices.
  at::Tensor received(const CommCall& call, size_t i, int64_t p, const at::Tensor& like) const {
    const bool announced = !call.receive_shapes.empty();
    TORCH_CHECK(announced || like.defined(), "world without peers: rank ", call.ranks[i],
                " passes no tensor whose shape its result could have; fill in call.receive_shapes");
    const auto options = like.defined() ? like.options() : at::TensorOptions(device_).dtype(call.event.dtype);
    if (!announced) return at::zeros(like.sizes(), options);
    const Shape& shape = call.receive_shapes[i][p];
    return at::zeros({shape.data(), shape.size()}, options);
  }

  c10::Device device_;
};

}  // namespace

std::unique_ptr<Communicator> make_dry_communicator(c10::Device device) {
  return std::make_unique<DryCommunicator>(device);
}

}  // namespace dtensor
