// A detector's loss as YOLOv8 has it (classes, complete IoU, distribution focal loss) with Adam: what a mesh changes of
// the values is rounding.
#include <torch/nn.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

constexpr int64_t kImages = 8, kSide = 8, kClasses = 5, kBins = 4;

// Convolutions with batch norm and SiLU, and one head for classes and the bins of four distances per place.
struct DetectorImpl : torch::nn::Module {
  explicit DetectorImpl(const Tensor& made_on) {
    int64_t channels = 3;
    for (const int64_t width : {8, 16}) {
      body->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, width, 3).padding(1).bias(false)));
      body->push_back(torch::nn::BatchNorm2d(width));
      body->push_back(torch::nn::SiLU());
      channels = width;
    }
    register_module("body", body);
    head = register_module("head", torch::nn::Conv2d(channels, kClasses + 4 * kBins, 1));
    const Tensor steps = torch::arange(kSide) + 0.5;
    anchors = torch::stack({steps.repeat(kSide), steps.repeat_interleave(kSide)}, -1).to(made_on.options());
    bins = torch::arange(kBins).to(made_on.options());
  }

  // [images, places, classes] and [images, places, 4, bins]
  std::pair<Tensor, Tensor> forward(const Tensor& images) {
    const Tensor out = head(body->forward(images)).flatten(2).transpose(1, 2);
    return {out.slice(-1, 0, kClasses), out.slice(-1, kClasses).unflatten(-1, {4, kBins})};
  }

  torch::nn::Sequential body;
  torch::nn::Conv2d head{nullptr};
  Tensor anchors, bins;  // plain members
};
TORCH_MODULE(Detector);

// Of boxes by two corners.
Tensor complete_iou(const Tensor& a, const Tensor& b) {
  const auto corner = [](const Tensor& t, int64_t i) { return t.slice(-1, 2 * i, 2 * i + 2); };
  const auto area = [](const Tensor& sides) { return sides.prod(-1); };
  const Tensor shared =
      (torch::minimum(corner(a, 1), corner(b, 1)) - torch::maximum(corner(a, 0), corner(b, 0))).clamp_min(0);
  const Tensor sides_a = corner(a, 1) - corner(a, 0), sides_b = corner(b, 1) - corner(b, 0);
  const Tensor iou = area(shared) / (area(sides_a) + area(sides_b) - area(shared) + 1e-7);
  const Tensor hull = torch::maximum(corner(a, 1), corner(b, 1)) - torch::minimum(corner(a, 0), corner(b, 0));
  const Tensor apart = (corner(a, 0) + corner(a, 1) - corner(b, 0) - corner(b, 1)).pow(2).sum(-1) / 4;
  const auto angle = [](const Tensor& s) { return torch::atan(s.select(-1, 0) / (s.select(-1, 1) + 1e-7)); };
  const Tensor v = 4 / (M_PI * M_PI) * (angle(sides_a) - angle(sides_b)).pow(2);
  const Tensor weight = (v / (v - iou + (1 + 1e-7))).detach();
  return iou - apart / (hull.pow(2).sum(-1) + 1e-7) - v * weight;
}

struct Batch {
  Tensor images, scores, boxes, is_object;  // [images, places, ...]
};

Tensor loss_of(Detector& net, const Batch& batch) {
  const auto [classes, distances] = net(batch.images);
  const Tensor objects = batch.scores.sum().clamp_min(1);
  const Tensor by_class = F::binary_cross_entropy_with_logits(
      classes, batch.scores, F::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kSum));
  const Tensor sides = (distances.softmax(-1) * net->bins).sum(-1);
  const Tensor boxes = torch::cat({net->anchors - sides.slice(-1, 0, 2), net->anchors + sides.slice(-1, 2)}, -1);
  const Tensor by_box = ((1 - complete_iou(boxes, batch.boxes)) * batch.is_object).sum();
  const Tensor wanted =
      torch::cat({net->anchors - batch.boxes.slice(-1, 0, 2), batch.boxes.slice(-1, 2) - net->anchors}, -1)
          .clamp(0, kBins - 1.01);
  const Tensor left = wanted.floor(), log = distances.log_softmax(-1);
  const auto at = [&](const Tensor& bin) { return log.gather(-1, bin.to(torch::kLong).unsqueeze(-1)).squeeze(-1); };
  const Tensor by_bin = -(at(left) * (left + 1 - wanted) + at(left + 1) * (wanted - left));
  return (0.5 * by_class + 7.5 * by_box + 1.5 * (by_bin.mean(-1) * batch.is_object).sum()) / objects;
}

// Losses of some steps and, behind them, all parameters. `mesh`: undefined for one device.
std::vector<double> train(const DeviceMesh& mesh, torch::ScalarType dtype) {
  torch::manual_seed(4);
  const int64_t places = kSide * kSide;
  const Tensor corners = torch::rand({kImages, places, 4}, torch::kDouble) * 3;
  Batch batch{torch::randn({kImages, 3, kSide, kSide}, torch::kDouble), {}, {}, {}};
  batch.is_object = (torch::rand({kImages, places}, torch::kDouble) < 0.2).to(torch::kDouble);
  batch.scores = batch.is_object.unsqueeze(-1) * torch::rand({kImages, places, kClasses}, torch::kDouble);
  Detector net(torch::empty({0}, torch::kDouble));
  batch.boxes = torch::cat({net->anchors - corners.slice(-1, 0, 2), net->anchors + corners.slice(-1, 2)}, -1);
  net->to(dtype);
  for (Tensor* t : {&net->anchors, &net->bins, &batch.images, &batch.scores, &batch.boxes, &batch.is_object})
    *t = t->to(dtype);
  if (mesh.defined()) {
    distribute_module(*net, mesh);
    replicate_members(*net, {&net->anchors, &net->bins});
    for (Tensor* t : {&batch.images, &batch.scores, &batch.boxes, &batch.is_object})
      *t = distribute_tensor(*t, mesh, {Shard(0)});
  }
  torch::optim::Adam optimizer(net->parameters(), 1e-2);
  std::vector<double> values;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const Tensor loss = loss_of(net, batch);
    loss.backward();
    optimizer.step();
    values.push_back(loss.item<double>());
  }
  for (const Tensor& p : net->parameters()) {
    const Tensor flat = (is_dtensor(p) ? full_tensor(p) : p).detach().flatten().to(torch::kDouble);
    values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("detection: losses and parameters after Adam differ from one device by rounding alone") {
  const DeviceMesh mesh(World::local(4), {4}, {"dp"}), one_device;
  const auto exact = train(one_device, torch::kDouble);
  const double in_float64 = largest_difference(train(mesh, torch::kDouble), exact);
  const double of_mesh = largest_difference(train(mesh, torch::kFloat), exact);
  const double of_one = largest_difference(train(one_device, torch::kFloat), exact);
  INFO("float64: " << in_float64 << "; float32 from float64: mesh " << of_mesh << ", one device " << of_one);
  CHECK(exact[0] > 1.2 * exact[9]);  // it learns
  CHECK(in_float64 < 1e-9);
  CHECK(of_one > 1e-6);  // float32 rounds, with or without a mesh
  CHECK(of_mesh < 10 * of_one);
}

}  // namespace dtensor
