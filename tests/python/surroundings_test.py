"""What programs put around operators on distributed tensors: transforms, queues, fast paths. Compared with plain tensors."""

import os
import sys
import unittest
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.multiprocessing
from torch import nn
from torch.func import jacfwd, jacrev, jvp, linearize, vmap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import dtensor_torch

dt = torch.ops.dtensor


class Surroundings(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.mesh = dt.init_local_mesh([2, 2], ["dp", "tp"])
        self.w, self.x = torch.randn(5, 6, dtype=torch.double), torch.randn(4, 6, dtype=torch.double)

    def check(self, function):
        """Of w and x, in several layouts."""
        expected = function(self.w, self.x)
        for layouts in (("RR", "RR"), ("S(0)R", "RS(0)"), ("S(1)S(0)", "S(0)R"), ("RS(1)", "S(1)S(1)")):
            got = function(*(dt.distribute(t, self.mesh, p) for t, p in zip((self.w, self.x), layouts)))
            self.assertTrue(torch.allclose(dt.full_tensor(got), expected), layouts)

    def test_vmap_of_tangents(self):
        tanh = lambda w, x: torch.tanh(w @ x)
        self.check(lambda w, x: vmap(jacfwd(jacrev(tanh, 1), 1), (None, 0))(w, x))

    def test_a_tangent_of_one_factor_of_a_dot_product(self):
        self.check(lambda w, x: jvp(lambda t: torch.dot(w[0], t), (x[0],), (x[1],))[1])

    def test_batched_gradients(self):
        def gradients(w, x):
            x.requires_grad_()
            y = (x @ w.t()).sin().sum(0)
            rows = y.detach().diag()
            return torch.autograd.grad(y, x, rows, is_grads_batched=True)[0]

        self.check(gradients)
        jacobian = lambda w, x: torch.autograd.functional.jacobian(lambda t: (t @ w.t()).sin(), x, vectorize=True)
        self.check(jacobian)

    def test_transforms_that_trace_plain_tensors(self):
        value, tangent = linearize(torch.sin, self.x)
        self.assertTrue(torch.allclose(tangent(self.x), self.x.cos() * self.x))

    def test_encoder_with_padding(self):
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dtype=torch.double), 2)
        encoder.eval()
        padding = torch.tensor([[False] * 3 + [True]] * 2)
        x = torch.randn(2, 4, 6, dtype=torch.double)
        with torch.no_grad():
            expected = encoder(x, src_key_padding_mask=padding)
            for p in encoder.parameters():
                p.data = dt.distribute(p.data, self.mesh, "RR")
            x, padding = (dt.distribute(t, self.mesh, "S(0)R") for t in (x, padding))
            got = dt.full_tensor(encoder(x, src_key_padding_mask=padding))
        self.assertTrue(torch.allclose(got[:, :3], expected[:, :3]))

    def test_pipes_and_queues(self):
        layout = "S(0)R"
        x = dt.distribute(self.x, self.mesh, layout)
        ends = torch.multiprocessing.Pipe()
        ends[0].send([x, nn.Parameter(x), self.w])
        same, parameter, plain = ends[1].recv()
        self.assertIsInstance(parameter, nn.Parameter)
        self.assertTrue(torch.equal(plain, self.w))
        for t in (same, parameter):
            self.assertEqual(dt.placements(t), layout)
            self.assertTrue(torch.equal(dt.full_tensor(t), self.x))
        fork = torch.multiprocessing.get_context("fork")
        queue, received = fork.SimpleQueue(), fork.Event()
        worker = fork.Process(target=lambda: (queue.put(2 * x), received.wait()))  # it lends its memory until then
        worker.start()
        self.assertTrue(torch.equal(dt.full_tensor(queue.get()), 2 * self.x))
        received.set()
        worker.join()


if __name__ == "__main__":
    program = unittest.main(exit=False)
    result = program.result
    failed = len(result.failures) + len(result.errors)
    print(f"[dtensor] {result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    sys.exit(failed > 0)
