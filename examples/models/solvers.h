// Numerical loops in plain ATen: conjugate gradient, k-means, power iteration, QR of a tall matrix. None has code for
// meshes.
#pragma once

#include <torch/types.h>

namespace examples {

// Solves matrix @ x = right for a symmetric positive definite matrix [n, n].
// Source: Hestenes and Stiefel, Methods of Conjugate Gradients for Solving Linear Systems, 1952.
struct ConjugateGradient {
  ConjugateGradient(const torch::Tensor& matrix, const torch::Tensor& right);
  void iterate();

  torch::Tensor matrix, x, residual, direction;
  torch::Tensor squared;  // norm of the residual
};

// One round of Lloyd's: points [n, d], centers [k, d] -> new centers. Centers that are closest to no point are
// unchanged.
torch::Tensor k_means_step(const torch::Tensor& points, const torch::Tensor& centers);

// One step towards the largest singular vectors of a tall matrix [n, d]: vectors [d, k] -> [d, k], orthonormal.
torch::Tensor subspace_step(const torch::Tensor& matrix, const torch::Tensor& vectors);

// One step for one vector [d].
torch::Tensor power_step(const torch::Tensor& matrix, const torch::Tensor& vector);

// The factor R of a tall matrix [n, d], by QR of `blocks` blocks of rows, which must divide n.
// Source: Demmel et al., Communication-optimal Parallel and Sequential QR and LU Factorizations, 2012.
torch::Tensor tall_qr(const torch::Tensor& matrix, int64_t blocks);

}  // namespace examples
