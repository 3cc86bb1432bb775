#include "examples/models/solvers.h"

#include <ATen/ops/linalg_qr.h>

#include <tuple>

namespace examples {

ConjugateGradient::ConjugateGradient(const torch::Tensor& matrix, const torch::Tensor& right)
    : matrix(matrix), x(torch::zeros_like(right)), residual(right), direction(right), squared(right.dot(right)) {}

void ConjugateGradient::iterate() {
  const auto image = matrix.mv(direction);
  const auto step = squared / direction.dot(image);
  x = x + step * direction;
  residual = residual - step * image;
  const auto next = residual.dot(residual);
  direction = residual + next / squared * direction;
  squared = next;
}

torch::Tensor k_means_step(const torch::Tensor& points, const torch::Tensor& centers) {
  const auto distances = centers.square().sum(1) - 2 * points.matmul(centers.t());  // but for what all centers share
  const auto closest = distances.argmin(1);
  const auto counted = torch::cat({points, torch::ones_like(points.narrow(1, 0, 1))}, 1);
  const auto sums = torch::zeros({centers.size(0), counted.size(1)}, counted.options()).index_add(0, closest, counted);
  const auto counts = sums.narrow(1, centers.size(1), 1);
  return torch::where(counts > 0, sums.narrow(1, 0, centers.size(1)) / counts, centers);
}

torch::Tensor subspace_step(const torch::Tensor& matrix, const torch::Tensor& vectors) {
  return std::get<0>(at::linalg_qr(matrix.t().matmul(matrix.matmul(vectors))));
}

torch::Tensor power_step(const torch::Tensor& matrix, const torch::Tensor& vector) {
  const auto next = matrix.t().mv(matrix.mv(vector));
  return next / next.norm();
}

torch::Tensor tall_qr(const torch::Tensor& matrix, int64_t blocks) {
  const auto parts = std::get<1>(at::linalg_qr(matrix.view({blocks, -1, matrix.size(1)}), "r"));
  return std::get<1>(at::linalg_qr(parts.reshape({-1, matrix.size(1)}), "r"));
}

}  // namespace examples
