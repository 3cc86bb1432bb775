"""The tests of PyTorch's DTensor that make tensors and models on the device "meta" first, through torch.ops.dtensor."""

import os
import sys
import unittest
import warnings

warnings.filterwarnings("ignore")

import torch
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import dtensor_torch

dt = torch.ops.dtensor


class MetaDevice(unittest.TestCase):
    def setUp(self):
        self.mesh = dt.init_local_mesh([4], ["x"])

    def parts(self, tensor):
        return [tuple(part.shape) for part in dt.local_tensors(tensor)]

    # test_dtensor.py: test_meta_dtensor
    def test_tensor(self):
        on_meta = torch.randn(8, 6, device="meta")
        for layout, shape in (("S(0)", (2, 6)), ("R", (8, 6))):
            part = torch.empty(shape, device="meta")
            for d in (dt.distribute(on_meta, self.mesh, layout), dt.from_local([part] * 4, self.mesh, layout, [])):
                self.assertTrue(d.is_meta)
                self.assertEqual(d.shape, on_meta.shape)
                d = torch.empty_like(d, device="cpu")
                self.assertFalse(d.is_meta)
                self.assertEqual(d.device.type, "cpu")
                self.assertEqual(dt.placements(d), layout)
                torch.nn.init.constant_(d, 1.2)
                for local in dt.local_tensors(d):
                    self.assertTrue(torch.equal(local, torch.full(shape, 1.2)))

    # test_api.py: test_distribute_module_meta. Its partition function replaces parameters one by one.
    def test_module_whose_parameters_are_replaced(self):
        model = nn.Sequential(nn.Linear(20, 20, device="meta"), nn.ReLU(), nn.Linear(20, 20, device="meta"))
        for module in model.modules():
            for name, p in list(module._parameters.items()):
                d = torch.empty_like(dt.distribute(p.detach(), self.mesh, "S(0)"), device="cpu")
                module.register_parameter(name, nn.Parameter(d))
        for p in model.parameters():
            self.assertTrue(dt.is_dtensor(p))
            self.assertFalse(p.is_meta)
            self.assertEqual(p.device.type, "cpu")
            nn.init.ones_(p)
        x = torch.ones(3, 20)
        y = model(dt.distribute(x, self.mesh, "R"))
        self.assertTrue(torch.equal(dt.full_tensor(y), torch.full((3, 20), 421.0)))

    # test_random_ops.py: test_meta_tensor_init
    def test_tensor_that_is_drawn(self):
        drawn = []
        for layout in ("R", "S(0)"):
            d = torch.empty_like(dt.distribute(torch.empty(8, 6, device="meta"), self.mesh, layout), device="cpu")
            torch.manual_seed(0)
            d.uniform_()
            drawn.append(dt.full_tensor(d))
            locals = dt.local_tensors(d)
            for i in range(4):
                for j in range(i):
                    self.assertEqual(torch.equal(locals[i], locals[j]), layout == "R")
        self.assertTrue(torch.equal(*drawn))

    def check_model(self, mesh, layouts):
        """A model sharded on meta, allocated by Module.to_empty and initialised equals one made on one device."""
        model = nn.Linear(4, 8, bias=False, device="meta")
        model.weight = nn.Parameter(dt.distribute(model.weight.detach(), mesh, layouts))
        self.assertEqual(model.weight.device, torch.device("meta"))
        model.to_empty(device="cpu")
        self.assertEqual(model.weight.device.type, "cpu")
        self.assertEqual(dt.placements(model.weight), layouts)
        self.assertTrue(model.weight.requires_grad)
        torch.manual_seed(1)
        model.reset_parameters()
        one = nn.Linear(4, 8, bias=False)
        one.weight = nn.Parameter(dt.distribute(one.weight.detach(), dt.init_local_mesh([1], ["x"]), "R"))
        torch.manual_seed(1)
        one.reset_parameters()
        self.assertTrue(torch.equal(dt.full_tensor(model.weight), dt.full_tensor(one.weight)))
        model(dt.distribute(torch.ones(2, 4), mesh, "R" * len(dt.mesh_shape(mesh)))).sum().backward()
        self.assertEqual(dt.placements(model.weight.grad), layouts)

    # test_random_ops.py: test_tp_model_meta_init
    def test_tensor_parallel_model(self):
        self.check_model(self.mesh, "S(0)")
        self.check_model(self.mesh, "S(1)")

    # test_random_ops.py: test_fsdp_tp_model_meta_init
    def test_fully_sharded_and_tensor_parallel_model(self):
        self.check_model(dt.init_local_mesh([2, 2], ["dp", "tp"]), "S(0)S(0)")
        self.check_model(dt.init_local_mesh([2, 2], ["dp", "tp"]), "S(0)S(1)")

    def test_likes_of_the_other_kind_of_device(self):
        d = dt.distribute(torch.ones(8, 6, dtype=torch.float64), self.mesh, "S(0)")
        meta = torch.zeros_like(d, device="meta")
        self.assertTrue(meta.is_meta)
        self.assertEqual(dt.placements(meta), "S(0)")
        self.assertTrue(torch.equal(dt.full_tensor(torch.full_like(meta, 3, device="cpu")), torch.full((8, 6), 3.0).double()))
        self.assertTrue(torch.equal(dt.full_tensor(meta.new_ones(2, device="cpu")), torch.ones(2).double()))
        with self.assertRaisesRegex(NotImplementedError, "Cannot copy out of meta tensor"):
            meta.to("cpu")


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"[dtensor] {result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    sys.exit(failed > 0)
