"""torch.nn models on a mesh through torch.ops.dtensor, compared with the same run on plain tensors."""

import copy
import io
import json
import os
import sys
import threading
import unittest
import warnings

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import dtensor_torch

dt = torch.ops.dtensor


def counts():
    """The collectives since the last reset, without the zeros."""
    return {name: n for name, n in json.loads(dt.comm_counts()).items() if n}


def torch_release():
    return tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])


# ---- a model that is written without meshes ---------------------------------------------------------------------------

VOCAB, WIDTH, HEADS, HIDDEN, LENGTH, BATCH = 23, 12, 2, 13, 6, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        y = self.norm1(x)
        q, k, v = (w(y).view(b, t, HEADS, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions)))


# Placements over the mesh (dp, tp) by the end of a parameter's name; RR for the others.
TENSOR_PARALLEL = {
    **{f"{name}.{part}": "RS(0)" for name in ("wq", "wk", "wv", "up", "head") for part in ("weight", "bias")},
    "tokens.weight": "RS(0)",
    "wo.weight": "RS(1)",
    "down.weight": "RS(1)",
}


def shard_in_place(model, mesh, plan):
    for name, p in model.named_parameters():
        p.data = dt.distribute(p.data, mesh, plan.get(".".join(name.split(".")[-2:]), "RR"))
    return model


def train(model, optimizer, batches, clip=None):
    losses = []
    for ids, targets in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).reshape(-1, VOCAB), targets.reshape(-1))
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


class TrainTest(unittest.TestCase):
    """Ten steps on a 2x2 mesh give the losses of the plain run, within 1e-9."""

    def setUp(self):
        torch.manual_seed(7)
        self.mesh = dt.init_local_mesh([2, 2], ["dp", "tp"])
        self.model = LanguageModel().double()
        self.batches = [tuple(torch.randint(VOCAB, (2, BATCH, LENGTH))) for _ in range(10)]

    def check(self, optimizer, shard=shard_in_place, **options):
        plain, sharded = self.model, shard(copy.deepcopy(self.model), self.mesh, TENSOR_PARALLEL)
        layout = {name: dt.placements(p) for name, p in sharded.named_parameters()}
        expected = train(plain, optimizer(plain.parameters()), self.batches, **options)
        on_mesh = optimizer(sharded.parameters())
        batches = [[dt.distribute(t, self.mesh, "S(0)R") for t in batch] for batch in self.batches]
        losses = train(sharded, on_mesh, batches, **options)

        self.assertLess(expected[-1], expected[0])
        for got, want in zip(losses, expected):
            self.assertLess(abs(got - want), 1e-9)
        for (name, p), q in zip(sharded.named_parameters(), plain.parameters()):
            self.assertEqual(dt.placements(p), layout[name], name)
            self.assertEqual(dt.placements(p.grad), layout[name], name)
            torch.testing.assert_close(dt.full_tensor(p), q, rtol=0, atol=1e-8, msg=name)
            for key, value in on_mesh.state.get(p, {}).items():
                if torch.is_tensor(value) and value.dim() > 0:
                    self.assertEqual(dt.placements(value), layout[name], f"{key} of {name}")
        self.assertIn("RS(0)", layout.values())

    def test_sgd(self):
        self.check(lambda p: torch.optim.SGD(p, lr=0.1))

    def test_sgd_momentum(self):
        self.check(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))

    def test_adam(self):
        self.check(torch.optim.Adam)

    def test_adamw(self):
        self.check(torch.optim.AdamW)

    def test_adamw_foreach(self):  # the default where the parameters are on a GPU
        self.check(lambda p: torch.optim.AdamW(p, foreach=True))

    def test_sgd_foreach_momentum(self):
        self.check(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True))

    def test_rprop(self):
        # The sign of a gradient is all that counts. Those of the keys' biases above are zero but for rounding: no sign to compare.
        x, y = torch.randn(8, 5).double(), torch.randn(8, 3).double()
        for foreach in (False, True):
            plain = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
            sharded = shard_in_place(copy.deepcopy(plain), self.mesh, {"0.weight": "RS(0)", "0.bias": "RS(0)", "2.weight": "S(0)S(1)"})
            layouts = [dt.placements(p) for p in sharded.parameters()]
            losses = []
            for model, (a, b) in ((plain, (x, y)), (sharded, [dt.distribute(t, self.mesh, "S(0)R") for t in (x, y)])):
                optimizer = torch.optim.Rprop(model.parameters(), lr=1e-2, foreach=foreach)
                losses.append([])
                for _ in range(20):
                    optimizer.zero_grad()
                    loss = (model(a) - b).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses[-1].append(loss.item())
            self.assertLess(losses[0][-1], losses[0][0])
            torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-9)
            for p, q, layout in zip(sharded.parameters(), plain.parameters(), layouts):
                self.assertEqual(dt.placements(p), layout)
                self.assertEqual(dt.placements(optimizer.state[p]["step_size"]), layout)
                torch.testing.assert_close(dt.full_tensor(p), q, rtol=0, atol=1e-9)

    def test_elementwise_results_are_those_of_plain_tensors(self):
        flags, numbers = torch.rand(4, 6) > 0.5, torch.rand(4, 6)
        whole = torch.arange(24).reshape(4, 6)
        images = torch.rand(2, 4, 6, 3).permute(0, 3, 1, 2)
        calls = {
            "pow": (lambda t: t ** True, [flags, whole, numbers]),
            "ldexp": (lambda t: torch.ldexp(t, t), [whole]),
            "add": (lambda t: t + 1.5, [flags, whole, numbers, images]),
            "clone": (lambda t: t.clone(), [numbers, images]),
            "channels last": (lambda t: t.clone(memory_format=torch.channels_last), [torch.rand(2, 3, 4, 6)]),
            "masked_fill": (lambda t: t.masked_fill(t > 0.5, 2), [numbers, images]),
            "where": (lambda t: torch.where(t > 0, t, 0.5), [whole, numbers]),
        }
        for name, (call, inputs) in calls.items():
            for plain in inputs:
                for transposed in (False, True):
                    if name == "channels last" and transposed:
                        continue
                    t, split = plain, dt.distribute(plain, self.mesh, "S(0)R")
                    if transposed:
                        t, split = t.transpose(0, 1), split.transpose(0, 1)
                    with self.subTest(name, sizes=t.shape, strides=t.stride(), dtype=t.dtype):
                        expected, got = call(t), call(split)
                        self.assertEqual(got.dtype, expected.dtype)
                        self.assertEqual(got.stride(), expected.stride())
                        torch.testing.assert_close(dt.full_tensor(got), expected)

    def test_clip_grad_norm(self):
        self.check(lambda p: torch.optim.SGD(p, lr=0.5), clip=0.1)

    def test_parameters_replaced_instead_of_set(self):
        def shard(model, mesh, plan):
            for path, module in model.named_modules():
                for name, p in list(module.named_parameters(recurse=False)):
                    layout = plan.get(f"{path.split('.')[-1]}.{name}", "RR")
                    setattr(module, name, nn.Parameter(dt.distribute(p.detach(), mesh, layout)))
            return model

        self.check(torch.optim.AdamW, shard)

    def test_results_that_meta_kernels_of_python_describe_otherwise(self):
        x = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
        weight = torch.randn(2, 3, 3, 3)
        got = F.conv2d(dt.distribute(x, self.mesh, "S(0)R").to(memory_format=torch.channels_last), dt.distribute(weight, self.mesh, "RR"))
        want = F.conv2d(x, weight)
        self.assertEqual(got.stride(), want.stride())
        torch.testing.assert_close(dt.full_tensor(got), want)
        scores, classes = torch.randn(7), torch.tensor([1, 3, -1, 0, 0, 0, 0])
        got = F.multilabel_margin_loss(
            dt.distribute(scores, self.mesh, "S(0)R"), dt.distribute(classes, self.mesh, "RR"), reduction="none"
        )
        torch.testing.assert_close(dt.full_tensor(got), F.multilabel_margin_loss(scores, classes, reduction="none"))

    def test_strides_that_meta_kernels_of_python_describe_otherwise(self):
        def last(t):
            return t.to(memory_format=torch.channels_last)

        images, volumes, matrices = torch.randn(4, 8, 6, 4), torch.randn(2, 4, 4, 6, 5), torch.randn(4, 3, 5)
        calls = {
            "reflect": (images, lambda t: F.pad(last(t), (1, 2, 1, 1), mode="reflect")),
            "replicate": (images, lambda t: F.pad(last(t), (1, 2, 1, 1), mode="replicate")),
            "volumes": (volumes, lambda t: F.pad(t.to(memory_format=torch.channels_last_3d), [1] * 6, mode="reflect")),
            "circular": (images, lambda t: F.pad(last(t), (1, 2, 1, 1), mode="circular")),
            "shuffle": (images, lambda t: F.pixel_shuffle(last(t), 2)),
            "unshuffle": (images, lambda t: F.pixel_unshuffle(last(t), 2)),
            "means": (images, lambda t: F.adaptive_avg_pool2d(last(t), 2)),
            "transposed": (images, lambda t: F.conv_transpose2d(last(t), last(t.transpose(0, 1)))),
            "normalized": (images, lambda t: F.instance_norm(last(t))),
            "unpooled": (images, lambda t: F.max_unpool2d(*F.max_pool2d(last(t), 2, return_indices=True), 2)),
            "vectors": (matrices, lambda t: torch.linalg.eig(t.mT @ t).eigenvectors),
            "rows": (matrices, lambda t: torch.linalg.svd(t).Vh),
        }
        for name, (plain, call) in calls.items():
            for placements in ("RR", "S(0)R", "RS(2)"):
                with self.subTest(name, placements=placements):
                    got, want = call(dt.distribute(plain, self.mesh, placements)), call(plain)
                    self.assertEqual(got.stride(), want.stride())
                    if not matrices.is_set_to(plain):  # signs of vectors are arbitrary
                        torch.testing.assert_close(dt.full_tensor(got), want)

    def test_multihead_attention_module(self):
        x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.double)
        plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
        sharded = copy.deepcopy(plain)
        for name, p in sharded.named_parameters():
            p.data = dt.distribute(p.data, self.mesh, {"out_proj.weight": "RS(1)"}.get(name, "RR"))
        want, _ = plain(x, x, x, need_weights=False)
        y = dt.distribute(x, self.mesh, "S(0)R")
        got, _ = sharded(y, y, y, need_weights=False)
        torch.testing.assert_close(dt.full_tensor(got), want)
        want.square().sum().backward()
        got.square().sum().backward()
        for p, q in zip(sharded.parameters(), plain.parameters()):
            torch.testing.assert_close(dt.full_tensor(p.grad), q.grad)

    def test_optimizer_step_does_not_communicate(self):
        model = shard_in_place(self.model, self.mesh, TENSOR_PARALLEL)
        optimizer = torch.optim.AdamW(model.parameters())
        ids, targets = (dt.distribute(t, self.mesh, "S(0)R") for t in self.batches[0])
        F.cross_entropy(model(ids).reshape(-1, VOCAB), targets.reshape(-1)).backward()
        dt.comm_counts_reset()
        optimizer.step()
        self.assertEqual(counts(), {})


class LayoutTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.mesh = dt.init_local_mesh([2, 2], ["dp", "tp"])
        self.x = torch.randn(7, 5, dtype=torch.double)

    def test_distribute_and_back(self):
        for layout in ("RR", "S(0)R", "RS(1)", "S(0)S(1)", "S(0)S(0)", "S(1)S(1)"):
            d = dt.distribute(self.x, self.mesh, layout)
            self.assertTrue(dt.is_dtensor(d))
            self.assertEqual(dt.placements(d), layout)
            self.assertEqual(d.shape, self.x.shape)
            self.assertTrue(torch.equal(dt.full_tensor(d), self.x))
        self.assertFalse(dt.is_dtensor(self.x))

    def test_one_exchange_serves_the_slices_of_a_ghost_width(self):
        for width, exchanges in ([0, 0], 2), ([1, 0], 1):
            d = dt.distribute(torch.randn(16, 4), self.mesh, "S(0)R")
            dt.set_ghost_width(d, width)
            dt.comm_counts_reset()
            d[2:] * 1, d[1:] * 1
            self.assertEqual(sum(counts().values()), exchanges)

    def test_from_local_of_local_tensors(self):
        for layout in ("RR", "S(0)R", "S(1)S(0)", "S(0)S(0)"):
            d = dt.distribute(self.x, self.mesh, layout)
            locals_ = dt.local_tensors(d)
            self.assertEqual(len(locals_), 4)
            for shape in (list(self.x.shape), []):  # []: computed from the parts
                again = dt.from_local(locals_, self.mesh, layout, shape)
                self.assertEqual(dt.placements(again), layout)
                self.assertTrue(torch.equal(dt.full_tensor(again), self.x))
        sizes = [tuple(t.shape) for t in dt.local_tensors(dt.distribute(self.x, self.mesh, "S(0)S(0)"))]
        self.assertEqual(sizes, [(2, 5), (2, 5), (2, 5), (1, 5)])

    def test_scalars_keep_their_empty_shape(self):
        parts = [torch.tensor(float(rank)) for rank in range(4)]
        total = dt.from_local(parts, self.mesh, "P(sum)P(sum)", [])
        self.assertEqual(total.shape, ())
        self.assertEqual(total.item(), 6.0)

    def test_gradients(self):
        w = torch.randn(7, 5, dtype=torch.double)
        x = dt.distribute(self.x, self.mesh, "S(0)R").requires_grad_()
        (dt.full_tensor(dt.redistribute(x, "RS(1)")) * w).sum().backward()
        self.assertEqual(dt.placements(x.grad), "S(0)R")
        self.assertTrue(torch.equal(dt.full_tensor(x.grad), w))

        parts = [t.detach().requires_grad_() for t in dt.local_tensors(dt.distribute(self.x, self.mesh, "S(0)S(1)"))]
        d = dt.from_local(parts, self.mesh, "S(0)S(1)", [7, 5])
        weights = dt.local_tensors(dt.distribute(w, self.mesh, "S(0)S(1)"))
        sum((a * b).sum() for a, b in zip(dt.local_tensors(d), weights)).backward()
        for part, weight in zip(parts, weights):
            self.assertTrue(torch.equal(part.grad, weight))

    def test_numbers_promote_as_numbers(self):
        """Python's numbers reach the operators as 0-dim tensors that must not count as tensors of float64."""
        scalar, whole, half = torch.tensor(3.5), torch.arange(35).reshape(7, 5), torch.rand(7, 5).bfloat16()
        for plain, layouts in ((scalar, ("RR", "P(sum)R")), (whole, ("RR", "S(0)R", "RP(sum)")), (half, ("RR", "S(1)S(0)"))):
            for layout in layouts:
                d = dt.distribute(plain, self.mesh, layout)
                for f in (
                    lambda t: t + 0.5,
                    lambda t: 0.5 - t,
                    lambda t: t * 0.5,
                    lambda t: t / 2.0,
                    lambda t: t**0.5,
                    lambda t: torch.where(t > 3, t, 0.25),
                    lambda t: t > 0.5,
                ):
                    got, want = f(d), f(plain)
                    self.assertEqual(got.dtype, want.dtype)
                    torch.testing.assert_close(dt.full_tensor(got), want, equal_nan=True)

    def test_hooks_on_parameters(self):
        for forward_first in (False, True):
            p = nn.Parameter(dt.distribute(self.x[:5], self.mesh, "RR"))
            x = dt.distribute(self.x, self.mesh, "S(0)R")
            seen = []
            loss = (x @ p).sum() if forward_first else None
            p.register_hook(lambda g: seen.append(g) or 2 * g)
            p.register_hook(lambda g: seen.append(g))
            loss = (x @ p).sum() if loss is None else loss
            loss.backward()
            self.assertEqual(dt.placements(p.grad), "RR")
            want = self.x.sum(0).unsqueeze(1).expand(5, 5)
            torch.testing.assert_close(dt.full_tensor(seen[0]), want)
            torch.testing.assert_close(dt.full_tensor(seen[1]), 2 * want)
            torch.testing.assert_close(dt.full_tensor(p.grad), 2 * want)

    def test_gradients_that_are_there_are_added_to_in_one_collective(self):
        ps = [nn.Parameter(dt.distribute(self.x[:5] + i, self.mesh, "RR")) for i in range(3)]
        x = dt.distribute(self.x, self.mesh, "S(0)S(0)")
        grads = []
        for p in ps:
            p.register_post_accumulate_grad_hook(lambda p: grads.append(p.grad))
        for times in (1, 2):
            loss = sum((x @ p).sum() for p in ps)
            dt.comm_counts_reset()
            loss.backward()
            self.assertEqual(sum(json.loads(dt.comm_counts()).values()), 1)
            want = times * self.x.sum(0).unsqueeze(1).expand(5, 5)
            for p in ps:
                self.assertEqual(dt.placements(p.grad), "RR")
                torch.testing.assert_close(dt.full_tensor(p.grad), want)
        self.assertEqual(len(grads), 6)

    def test_what_dispatch_modes_see(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        class Recorder(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append((str(func), tuple(args[0].shape), dt.is_dtensor(args[0])))
                return func(*args, **(kwargs or {}))

        d = dt.distribute(self.x, self.mesh, "S(0)R")
        seen = []
        with Recorder():
            d + 1
        calls = [call[1:] for call in seen if call[0] == "aten.add.Tensor"]
        if torch_release() < (2, 13):  # Python's key lay below that of distributed tensors
            self.assertEqual(calls, [((4, 5), False), ((4, 5), False), ((3, 5), False), ((3, 5), False)])
        else:
            self.assertEqual(calls, [((7, 5), True)])

    def test_beside_fake_tensors(self):
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        d = dt.distribute(self.x, self.mesh, "S(0)R")
        with FakeTensorMode() as mode:
            fake = torch.empty(7, 5) + 1
        self.assertIsInstance(fake, FakeTensor)
        self.assertFalse(dt.is_dtensor(fake))
        self.assertTrue(torch.equal(dt.full_tensor(d + d), 2 * self.x))
        with mode:
            self.assertIsInstance(fake @ torch.empty(5, 2), FakeTensor)
        self.assertTrue(dt.is_dtensor(d.relu()))

    def test_works_without_autograd(self):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                d = dt.distribute(self.x, self.mesh, "S(0)R")
                self.assertTrue(torch.equal(dt.full_tensor(dt.redistribute(d + d, "RS(1)")), 2 * self.x))
                self.assertEqual(len(dt.local_tensors(d)), 4)

    def test_counts(self):
        d = dt.distribute(self.x, self.mesh, "S(0)R")
        dt.comm_counts_reset()
        everything = json.loads(dt.comm_counts())
        self.assertEqual(len(everything), 9)
        self.assertEqual(set(everything.values()), {0})
        dt.redistribute(d, "RR")
        self.assertEqual(counts(), {"all_gather": 1})
        dt.redistribute(d, "S(1)R")
        self.assertEqual(counts(), {"all_gather": 1, "all_to_all": 1})
        parts = dt.from_local([self.x] * 4, self.mesh, "RP(sum)", [7, 5])
        dt.redistribute(parts, "RR")
        dt.redistribute(dt.from_local([self.x] * 4, self.mesh, "RP(sum)", [7, 5]), "RS(0)")
        self.assertEqual(counts(), {"all_gather": 1, "all_to_all": 1, "all_reduce": 1, "reduce_scatter": 1})
        dt.comm_counts_reset()
        self.assertEqual(counts(), {})

    def test_counts_of_all_threads(self):
        d = dt.distribute(self.x, self.mesh, "S(0)R")
        dt.comm_counts_reset()
        threads = [threading.Thread(target=lambda: [dt.full_tensor(d) for _ in range(5)]) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(counts(), {"all_gather": 20})

    def test_meshes_made_on_many_threads(self):
        handles = []
        threads = [threading.Thread(target=lambda: handles.append(dt.init_local_mesh([2], ["tp"]))) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(set(handles)), 8)
        for handle in handles:
            self.assertEqual(dt.placements(dt.distribute(self.x, handle, "S(0)")), "S(0)")

    def test_other_uses_of_pytorch_are_undisturbed(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            self.assertEqual((torch.randn(3, 4) @ torch.randn(4, 5)).shape, (3, 5))
        doubled = torch.func.vmap(torch.func.grad(lambda t: (t * t).sum()))(self.x)
        self.assertTrue(torch.equal(doubled, 2 * self.x))


class ErrorTest(unittest.TestCase):
    def setUp(self):
        self.mesh = dt.init_local_mesh([2, 2], ["dp", "tp"])
        self.x = torch.ones(4, 4)
        self.d = dt.distribute(self.x, self.mesh, "S(0)R")

    def test_mesh(self):
        for handle in (0, -1, 1 << 40):
            with self.assertRaisesRegex(ValueError, rf"\[distribute\] mesh {handle} does not exist"):
                dt.distribute(self.x, handle, "RR")
            with self.assertRaisesRegex(ValueError, r"\[from_local\] mesh"):
                dt.from_local([self.x] * 4, handle, "RR", [4, 4])
        for shape, names, text in (
            ([0, 2], ["dp", "tp"], "size 0 at dim 0"),
            ([], [], "at least 1 dim"),
            ([2, 2], ["dp"], "one name per dim"),
            ([2, 2], ["dp", "dp"], "occurs twice"),
        ):
            with self.assertRaisesRegex(RuntimeError, text):
                dt.init_local_mesh(shape, names)

    def test_placements(self):
        for call in (
            lambda text: dt.distribute(self.x, self.mesh, text),
            lambda text: dt.redistribute(self.d, text),
            lambda text: dt.from_local([self.x] * 4, self.mesh, text, [4, 4]),
        ):
            for text in ("S(0)X", "R", "RRR", "S(2)R", "S()R"):
                with self.assertRaisesRegex((ValueError, IndexError), r"\[(distribute|distribute_tensor|redistribute|from_local)\]"):
                    call(text)

    def test_locals(self):
        with self.assertRaisesRegex(ValueError, "3 local tensors, but this process owns 4"):
            dt.from_local([self.x] * 3, self.mesh, "RR", [4, 4])
        with self.assertRaisesRegex(ValueError, "by the chunk rule"):
            dt.from_local([self.x] * 4, self.mesh, "S(0)R", [4, 4])

    def test_plain_tensors(self):
        for call in (dt.full_tensor, dt.local_tensors, dt.placements, lambda t: dt.redistribute(t, "RR")):
            with self.assertRaisesRegex((TypeError, ValueError), "distributed"):
                call(self.x)
        for call in (
            lambda: self.d + self.x,
            lambda: self.x * self.d,
            lambda: torch.mm(self.d, self.x),
            lambda: F.linear(self.x, self.d),
        ):
            with self.assertRaisesRegex(RuntimeError, "is a plain tensor of shape"):
                call()
        with self.assertRaisesRegex(RuntimeError, "writes to a plain tensor"):
            self.x += self.d

    def test_nothing_is_left_behind(self):
        with self.assertRaises(RuntimeError):
            self.d @ self.x
        self.assertTrue(torch.equal(dt.full_tensor(self.d @ self.d), self.x @ self.x))

    def test_other_mesh(self):
        other = dt.distribute(self.x, dt.init_local_mesh([2, 2], ["dp", "tp"]), "S(0)R")
        with self.assertRaisesRegex(RuntimeError, "must share one mesh"):
            self.d + other

    def test_storage(self):
        for call in (self.d.untyped_storage, self.d.data_ptr, self.d.tolist):
            with self.assertRaisesRegex(RuntimeError, "in the local tensors of its ranks: use dtensor::full_tensor"):
                call()


class PrintTest(unittest.TestCase):
    def test_repr(self):
        mesh = dt.init_local_mesh([4], ["tp"])
        d = dt.distribute(torch.ones(8, 4), mesh, "S(0)")
        dt.comm_counts_reset()
        self.assertEqual(repr(d), "dtensor(float32[8, 4], S(0), device='cpu')")
        self.assertEqual(
            repr(nn.Parameter(d)),
            "Parameter containing:\ndtensor(float32[8, 4], S(0), device='cpu', requires_grad=True)",
        )
        self.assertIn("grad_fn=<MulBackward0>", repr(nn.Parameter(d) * 2))
        self.assertEqual(repr(torch.ones(2)), "tensor([1., 1.])")
        self.assertEqual(counts(), {})


class HelperTest(unittest.TestCase):
    """The additions of dtensor_torch.py."""

    def setUp(self):
        self.mesh = dt.init_local_mesh([2, 2], ["dp", "tp"])
        self.x = torch.arange(35, dtype=torch.double).reshape(7, 5)
        self.d = dt.distribute(self.x, self.mesh, "S(0)S(1)")

    def test_mesh_scope(self):
        with dtensor_torch.mesh_scope(self.mesh):
            made = torch.arange(5)
            y = self.d * torch.ones(5, dtype=torch.double)
            with self.assertRaises(ZeroDivisionError), dtensor_torch.mesh_scope(dt.init_local_mesh([2], ["tp"])):
                1 / 0
            self.assertEqual(dt.mesh_of(torch.zeros(3)), self.mesh)
        self.assertEqual(dt.placements(made), "RR")
        self.assertTrue(torch.equal(dt.full_tensor(y), self.x))
        self.assertFalse(dt.is_dtensor(torch.arange(5)))
        with self.assertRaisesRegex(ValueError, "does not exist"), dtensor_torch.mesh_scope(0):
            pass
        with self.assertRaisesRegex(ValueError, "innermost scope of this thread is none"):
            dt.leave_scope("mesh_scope")

    def test_scopes_of_threads(self):
        seen = []
        with dtensor_torch.mesh_scope(self.mesh):
            thread = threading.Thread(target=lambda: seen.append(dt.is_dtensor(torch.zeros(2))))
            thread.start()
            thread.join()
        self.assertEqual(seen, [False])

    def test_implicit_replication(self):
        plain = torch.ones(5, dtype=torch.double)
        with self.assertRaisesRegex(RuntimeError, "is a plain tensor"):
            self.d + plain
        with dtensor_torch.implicit_replication():
            y = self.d + plain
            with self.assertRaisesRegex(ValueError, "not mesh_scope"):
                dt.leave_scope("mesh_scope")
        self.assertTrue(torch.equal(dt.full_tensor(y), self.x + 1))
        with self.assertRaises(RuntimeError):
            self.d + plain

    def test_replicate_unsupported(self):
        with self.assertRaises(NotImplementedError):
            torch.hash_tensor(self.d)
        with dtensor_torch.replicate_unsupported():
            self.assertEqual(dt.full_tensor(torch.hash_tensor(self.d)).item(), torch.hash_tensor(self.x).item())

    def test_delay_gradient_reduction(self):
        p = nn.Parameter(dt.distribute(self.x[:5], self.mesh, "RR"))
        x = dt.distribute(self.x, self.mesh, "S(0)R")
        dt.comm_counts_reset()
        with dtensor_torch.delay_gradient_reduction():
            for _ in range(2):
                (x @ p).sum().backward()
        self.assertEqual(dt.placements(p.grad), "P(sum)R")
        self.assertEqual(sum(json.loads(dt.comm_counts()).values()), 0)
        dt.reduce_gradients([p])
        self.assertEqual(dt.placements(p.grad), "RR")
        self.assertEqual(sum(json.loads(dt.comm_counts()).values()), 1)
        want = 2 * self.x.sum(0).unsqueeze(1).expand(5, 5)
        torch.testing.assert_close(dt.full_tensor(p.grad), want)

    def test_deepcopy(self):
        p = nn.Parameter(self.d)
        p.grad = self.d * 2
        for copied in (copy.deepcopy(p), copy.deepcopy({"p": [p]})["p"][0]):
            self.assertIsNot(copied, p)
            self.assertIsInstance(copied, nn.Parameter)
            self.assertTrue(copied.requires_grad)
            self.assertEqual(dt.placements(copied), "S(0)S(1)")
            with torch.no_grad():
                copied.add_(1)
            self.assertTrue(torch.equal(dt.full_tensor(copied), self.x + 1))
        self.assertTrue(torch.equal(dt.full_tensor(p), self.x))
        grad = copy.deepcopy(self.d.detach().requires_grad_())
        self.assertTrue(grad.requires_grad)
        twice = [self.d, self.d]
        again = copy.deepcopy(twice)
        self.assertIs(again[0], again[1])
        with self.assertRaisesRegex(RuntimeError, "detach"):
            copy.deepcopy(p * 2)
        model = shard_in_place(LanguageModel().double(), self.mesh, TENSOR_PARALLEL)
        for p, q in zip(model.parameters(), copy.deepcopy(model).parameters()):
            self.assertTrue(torch.equal(dt.full_tensor(p), dt.full_tensor(q)))
            self.assertEqual(dt.placements(p), dt.placements(q))

    def test_new_tensor(self):
        made = self.d.new_tensor([[1, 2], [3, 4]], requires_grad=True)
        self.assertEqual((dt.placements(made), made.dtype, made.requires_grad), ("RR", self.d.dtype, True))
        self.assertTrue(torch.equal(dt.full_tensor(made), torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(self.d.dtype)))
        self.assertEqual(dt.placements(self.d.new_tensor(self.d, dtype=torch.double)), "S(0)S(1)")
        self.assertTrue(torch.equal(self.x.new_tensor([1, 2]), torch.tensor([1, 2]).to(self.x.dtype)))

    def test_new_and_resize(self):
        for made in (self.d.new(2, 3), self.d.new(torch.Size([2, 3]))):
            self.assertEqual((made.shape, made.dtype, dt.placements(made)), (torch.Size([2, 3]), self.d.dtype, "RR"))
        self.assertEqual(self.d.new().shape, torch.Size([0]))
        self.assertTrue(torch.equal(dt.full_tensor(self.d.new([1.0, 2.0])), self.x.new([1.0, 2.0])))
        self.assertTrue(torch.equal(dt.full_tensor(self.d.new(self.d)), self.x))
        self.assertEqual(self.x.new(2, 3).shape, torch.Size([2, 3]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both are deprecated
            for resize in (lambda t: t.resize(t.numel()), lambda t: t.resize_as(t.flatten())):
                self.assertTrue(torch.equal(dt.full_tensor(resize(self.d)), resize(self.x)))

    def test_truncated_normal_initialization(self):
        whole = dt.full_tensor(nn.init.trunc_normal_(self.d.detach().clone(), 0.0, 1.0, -0.5, 0.25))
        self.assertTrue(-0.5 <= whole.min() < whole.max() <= 0.25)

    def test_save_and_load(self):
        model = shard_in_place(LanguageModel().double(), self.mesh, TENSOR_PARALLEL)
        contents = {
            "model": model.state_dict(),
            "number": dt.distribute(torch.tensor(3.5), self.mesh, "RR"),
            "addends": dt.from_local([torch.ones(3)] * 4, self.mesh, "RP(sum)", [3]),
            "wants_grad": self.d.detach().requires_grad_(),
            "parameter": nn.Parameter(self.d),
            "plain": self.x,
        }
        for load in ({}, {"weights_only": False}):
            file = io.BytesIO()
            torch.save(contents, file)
            file.seek(0)
            loaded = torch.load(file, **load)
            self.assertTrue(torch.equal(loaded["plain"], self.x))
            self.assertEqual(loaded["number"].item(), 3.5)
            self.assertEqual(dt.placements(loaded["addends"]), "RP(sum)")
            self.assertEqual(dt.full_tensor(loaded["addends"]).tolist(), [2, 2, 2])
            self.assertTrue(loaded["wants_grad"].requires_grad)
            self.assertIsInstance(loaded["parameter"], nn.Parameter)
            fresh = shard_in_place(LanguageModel().double(), self.mesh, TENSOR_PARALLEL)
            fresh.load_state_dict(loaded["model"])
            for p, q in zip(model.parameters(), fresh.parameters()):
                self.assertTrue(torch.equal(dt.full_tensor(p), dt.full_tensor(q)))
        file.seek(0)
        other = dt.init_local_mesh([2, 2], ["dp", "tp"])
        with dtensor_torch.load_on(other):
            self.assertEqual(dt.mesh_of(torch.load(file)["number"]), other)
        file.seek(0)
        with self.assertRaisesRegex(ValueError, r"saved from a mesh of shape \[2, 2\]"):
            with dtensor_torch.load_on(dt.init_local_mesh([4], ["tp"])):
                torch.load(file)

    def test_meta(self):
        meta = dt.meta_mesh(self.mesh)
        d = dt.distribute(torch.empty(6, 4, device="meta"), self.mesh, "S(0)R")
        self.assertTrue(d.is_meta)
        self.assertEqual(dt.mesh_of(d), meta)
        self.assertEqual(repr(d), "dtensor(float32[6, 4], S(0)R, device='meta')")
        self.assertEqual((d @ d.T).shape, (6, 6))
        with dtensor_torch.mesh_scope(meta):
            model = LanguageModel()
        for name, p in list(model.named_parameters()):
            self.assertTrue(p.is_meta)
            p.data = dt.redistribute(p.data, TENSOR_PARALLEL.get(".".join(name.split(".")[-2:]), "RR"))
            p.data = dt.to_empty(p.data)
            self.assertFalse(p.is_meta)
            self.assertEqual(dt.mesh_of(p), self.mesh)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(0.01)
        ids = dt.distribute(torch.randint(VOCAB, (BATCH, LENGTH)), self.mesh, "S(0)R")
        self.assertTrue(dt.full_tensor(model(ids)).isfinite().all())
        with self.assertRaisesRegex(RuntimeError, "no data to save"):
            torch.save(d, io.BytesIO())

    def test_swap_tensors(self):
        linear = nn.Linear(6, 4)
        torch.utils.swap_tensors(linear.weight, nn.Parameter(dt.distribute(linear.weight.data, self.mesh, "S(0)R")))
        linear.bias.data = dt.distribute(linear.bias.data, self.mesh, "RR")
        x = dt.distribute(torch.randn(4, 6), self.mesh, "S(0)R")
        weight = linear.weight
        torch.__future__.set_swap_module_params_on_conversion(True)
        self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, False)
        linear(x).sum().backward()
        before = dt.full_tensor(linear.weight.detach())
        linear.to(torch.float64)  # swaps parameters that have been trained
        self.assertIs(linear.weight, weight)
        self.assertEqual(dt.placements(weight), "S(0)R")
        self.assertTrue(torch.equal(dt.full_tensor(weight.detach()), before.double()))
        linear.load_state_dict({name: t.clone() for name, t in linear.state_dict().items()})
        linear.zero_grad()
        linear(x.double()).sum().backward()
        self.assertEqual(dt.placements(weight.grad), "S(0)R")
        expected = dt.full_tensor(x).double().sum(0).expand(4, 6)
        self.assertTrue(torch.allclose(dt.full_tensor(weight.grad), expected))

    def test_process_mesh(self):
        mesh = dt.init_process_mesh([1], ["tp"])  # without a launcher
        self.assertEqual(list(dt.mesh_shape(mesh)), [1])
        d = dt.distribute(self.x, mesh, "S(0)")
        self.assertTrue(torch.equal(dt.full_tensor(d + dt.distribute(self.x, dt.init_process_mesh([1], ["tp"]), "S(0)")), 2 * self.x))


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    failed = len({test.id() for test, _ in result.failures + result.errors})
    skipped = len(result.skipped)
    print(f"[dtensor] {result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    sys.exit(not result.wasSuccessful())
