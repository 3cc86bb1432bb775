"""torch.distributed.checkpoint of distributed tensors: saved and loaded on other meshes, in other numbers of processes."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

warnings.filterwarnings("ignore")

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
import dtensor_torch

dt = torch.ops.dtensor

MESHES = [([1], "x"), ([4], "x"), ([3], "x"), ([2, 2], "xy"), ([2, 3], "xy")]
WHOLE = torch.arange(7 * 5, dtype=torch.float64).view(7, 5)


def layouts(dims):
    one = ["R", "S(0)", "S(1)"]
    return one if dims == 1 else [a + b for a in one for b in one] + ["_S(0, 2)S(0)"]


def save(state, folder):
    dcp.save(state, checkpoint_id=folder, no_dist=True)


def load(state, folder):
    dcp.load(state, checkpoint_id=folder, no_dist=True)


# ---- in several processes ---------------------------------------------------------------------------------------------


def job(folder, names):
    """The program of each process of a job: saves, and loads onto another layout."""
    import torch.distributed as dist

    mesh = dt.init_process_mesh([int(os.environ["WORLD_SIZE"])], ["x"])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    state = {"t": dt.distribute(WHOLE, mesh, names[0]), "r": dt.distribute(WHOLE + 1, mesh, "R"), "plain": WHOLE + 2}
    dcp.save(state, checkpoint_id=f"{folder}/checkpoint")
    again = {
        "t": dt.distribute(WHOLE * 0, mesh, names[1]),
        "r": dt.distribute(WHOLE * 0, mesh, "S(1)"),
        "plain": WHOLE * 0,
    }
    dcp.load(again, checkpoint_id=f"{folder}/checkpoint")
    assert torch.equal(dt.full_tensor(again["t"]), WHOLE)
    assert torch.equal(dt.full_tensor(again["r"]), WHOLE + 1)
    assert torch.equal(again["plain"], WHOLE + 2)
    dist.destroy_process_group()


def run_job(ranks, folder, layouts):
    """Processes of a job as a launcher starts them."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(ranks):
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        env = {**os.environ, **{k: str(v) for k, v in env.items()}, "MASTER_ADDR": "127.0.0.1"}
        command = [sys.executable, os.path.abspath(__file__), "job", folder, *layouts]
        processes.append(subprocess.Popen(command, env=env))
    try:
        return [p.wait(timeout=200) for p in processes]
    finally:
        for p in processes:
            p.kill()


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_every_layout_is_loaded_onto_every_other_and_plainly(self):
        saved = {}
        for shape, names in MESHES:
            mesh = dt.init_local_mesh(shape, list(names))
            for i, layout in enumerate(layouts(len(shape))):
                saved[f"{shape}.{i}"] = dt.distribute(WHOLE + len(saved), mesh, layout)
        save(saved, self.folder)
        plain = {name: torch.zeros_like(WHOLE) for name in saved}
        load(plain, self.folder)
        for i, name in enumerate(saved):
            self.assertTrue(torch.equal(plain[name], WHOLE + i), name)
        for shape, names in MESHES:
            mesh = dt.init_local_mesh(shape, list(names))
            for layout in layouts(len(shape)):
                again = {name: dt.distribute(torch.zeros_like(WHOLE), mesh, layout) for name in saved}
                load(again, self.folder)
                for i, name in enumerate(saved):
                    self.assertTrue(torch.equal(dt.full_tensor(again[name]), WHOLE + i), (name, layout))
                    for part in dt.local_tensors(dt.redistribute(again[name], "R" * len(shape))):
                        self.assertTrue(torch.equal(part, WHOLE + i))  # all copies were written

    def test_what_plain_tensors_saved_is_loaded_onto_a_mesh(self):
        save({"t": WHOLE}, self.folder)
        t = dt.distribute(torch.zeros_like(WHOLE), dt.init_local_mesh([3], ["x"]), "S(1)")
        load({"t": t}, self.folder)
        self.assertTrue(torch.equal(dt.full_tensor(t), WHOLE))

    def test_training_goes_on_with_other_numbers_of_ranks(self):
        def make(shape, names, layout):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
            mesh = dt.init_local_mesh(shape, list(names))
            for p in model.parameters():
                p.data = dt.distribute(p.data, mesh, layout)
            return model, torch.optim.Adam(model.parameters(), lr=0.1), dt.distribute(WHOLE, mesh, "R" * len(shape))

        def step(model, optimizer, x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        def state(model, optimizer):
            states = {f"{i}.{key}": v for i, s in optimizer.state_dict()["state"].items() for key, v in s.items()}
            return {"model": model.state_dict(), "optimizer": states}

        first = make([2, 2], "xy", "S(0)R")
        losses = [step(*first) for _ in range(3)]
        save(state(*first[:2]), self.folder)
        losses += [step(*first) for _ in range(3)]

        again = make([3], "x", "S(0)")
        step(*again)  # so that there is a state to load into
        load(state(*again[:2]), self.folder)
        for loss in losses[3:]:
            self.assertAlmostEqual(step(*again), loss, delta=1e-12)

    def test_what_was_remembered_of_the_values_before_is_gone_after_a_load(self):
        mesh = dt.init_local_mesh([2], ["x"])
        save({"t": WHOLE}, self.folder)
        t = dt.distribute(torch.zeros_like(WHOLE), mesh, "S(0)")
        other = dt.distribute(torch.eye(7, dtype=torch.float64), mesh, "S(0)")
        self.assertTrue(torch.equal(dt.full_tensor(other @ t), torch.zeros_like(WHOLE)))
        load({"t": t}, self.folder)
        self.assertTrue(torch.equal(dt.full_tensor(other @ t), WHOLE))

    def test_a_partial_tensor_is_refused_in_one_line(self):
        t = dt.distribute(WHOLE, dt.init_local_mesh([2], ["x"]), "P(sum)")
        with self.assertRaises(BaseException) as caught:  # torch's CheckpointException is no Exception
            save({"t": t}, self.folder)
        self.assertIn("a tensor laid out as P(sum) has addends, not values", str(caught.exception))

    def test_plain_tensors_do_not_have_the_protocol(self):
        for name in ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__"):
            self.assertFalse(hasattr(WHOLE, name))
            self.assertTrue(hasattr(dt.distribute(WHOLE, dt.init_local_mesh([2], ["x"]), "R"), name))

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "torch sends objects between processes by numpy")
    def test_a_job_of_three_processes_saves_and_one_process_loads(self):
        self.assertEqual(run_job(3, self.folder, ["S(0)", "S(1)"]), [0, 0, 0])
        t = dt.distribute(torch.zeros_like(WHOLE), dt.init_local_mesh([4], ["x"]), "S(0)")
        load({"t": t}, f"{self.folder}/checkpoint")
        self.assertTrue(torch.equal(dt.full_tensor(t), WHOLE))


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(sys.argv[2], sys.argv[3:])
        sys.exit()
    result = unittest.main(exit=False).result
    failed = len(result.failures) + len(result.errors)
    print(f"[dtensor] {result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    sys.exit(failed > 0)
