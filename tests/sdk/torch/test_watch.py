"""Norms of gradients and parameters."""

import gc
import math
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from chiplog.torch import watch as watch_module
from chiplog.torch.watch import group_by_submodule
from tests.support.sdk_events import counted, notices, numbers
from tests.support.stand_in_device import StandIn, install, resolve, uninstall
from tests.support.waiting import WAIT_S


def hooks() -> int:
    return len(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks)


def watched() -> int:
    """Return how many models are checked before a step."""
    return sum(not watch.is_stopped for watch in watch_module._watching)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))


def train(model, optimizer, run, steps, scaler=None) -> list[dict[str, float]]:
    """Train; return the norms that torch itself finds in front of each optimizer's step."""
    expected = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).square().mean()
        loss.backward()
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        expected.append(
            {
                "watch/grad_norm": torch.nn.utils.get_total_norm(grads).item(),
                "watch/param_norm": torch.nn.utils.get_total_norm(list(model.parameters())).item(),
            }
        )
        optimizer.step()
        run.log({"loss": loss}, step=step)
    return expected


def test_norms_are_those_that_the_optimizer_sees_every_so_many_steps(run, offline) -> None:
    model = small()
    run.watch(model, every=2)
    expected = train(model, torch.optim.SGD(model.parameters(), lr=0.1), run, 5)
    run.finish()
    found = {(key, step): value for key, step, value in numbers(offline()) if key.startswith("watch/")}
    assert {step for _, step in found} == {0, 2, 4}
    for step in (0, 2, 4):
        for key, value in expected[step].items():
            assert found[key, step] == pytest.approx(value, rel=1e-6)
        assert {key for key, at in found if at == step} == {
            *expected[step],
            *(f"watch/{kind}/{name}" for kind in ("grad_norm", "param_norm") for name in ("0", "2")),
        }
        assert found["watch/grad_norm", step] == pytest.approx(
            math.hypot(found["watch/grad_norm/0", step], found["watch/grad_norm/2", step])
        )
    assert counted(offline()) == {}


def test_norms_on_a_device_arrive_later_with_their_step(run, offline) -> None:
    device = StandIn()
    install(device)
    try:
        model = small()
        run.watch(model, every=1)
        expected = train(model, torch.optim.SGD(model.parameters(), lr=0.1), run, 1)
        assert [key for key, _, _ in numbers(offline())] == []
        device.advance()
        resolve(run)
        found = {key: value for key, _, value in numbers(offline())}
        assert found["watch/grad_norm"] == pytest.approx(expected[0]["watch/grad_norm"], rel=1e-6)
    finally:
        device.advance()
        run.finish()
        uninstall()


def test_a_model_that_is_gone_is_not_kept_nor_looked_at(run) -> None:
    before = watched()
    model = small()
    run.watch(model)
    assert watched() == before + 1
    gone = weakref.ref(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), run, 2)
    del model
    gc.collect()
    assert gone() is None
    assert watched() == before
    for _ in range(70):  # more than are watched at a time
        model = small()
        run.watch(model)
    assert watched() == before + 1
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), run, 1)
    assert len(watch_module._watching) == before + 1


def test_finish_stops_the_watching(run) -> None:
    before = watched()
    model = small()
    run.watch(model)
    run.finish()
    assert watched() == before
    run.watch(model)
    assert watched() == before


@pytest.mark.parametrize("end", ["the collector finds the model", "finish() in a signal handler"])
def test_a_watch_that_ends_inside_of_a_hook_raises_nothing_there(run, end) -> None:
    model, other = small(), small()
    run.watch(other)
    gone, other.itself = weakref.ref(other), [other]  # a cycle, as trainers make them
    run.watch(model, every=1)
    found: list[object] = [other]
    del other

    def hook(*_) -> None:  # as if it came at this very moment, while torch goes through its hooks
        found.clear()
        gc.collect() if end.startswith("the collector") else run.finish()

    register = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook
    handle, behind = register(hook), register(lambda *_: None)
    n_hooks = hooks()
    try:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), run, 1)
        assert not found
        assert gone() is None or not end.startswith("the collector")
        assert hooks() == n_hooks
    finally:
        handle.remove()
        behind.remove()


def test_another_models_optimizer_does_not_count(run, offline) -> None:
    model, other = small(), small()
    run.watch(model, every=1, name="G")
    train(other, torch.optim.SGD(other.parameters(), lr=0.1), run, 3)
    run.log({"x": 1.0}, step=9)
    train(model, torch.optim.Adam(model.parameters()), run, 1)
    run.finish()
    assert {step for key, step, _ in numbers(offline()) if key == "G/grad_norm"} == {0}


def test_gradients_that_are_missing_or_sparse_or_half_are_no_trouble(run, offline) -> None:
    model = nn.ModuleDict({"e": nn.Embedding(4, 2, sparse=True), "unused": nn.Linear(2, 2), "h": nn.Linear(2, 1)})
    model["h"].half()
    run.watch(model, every=1)
    model["e"](torch.tensor([1])).sum().backward()
    model["h"].weight.grad = torch.full((1, 2), 60_000.0, dtype=torch.float16)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    run.log({"x": 1.0})
    run.finish()
    found = {key: value for key, _, value in numbers(offline())}
    assert found["watch/grad_norm"] == pytest.approx(60_000 * math.sqrt(2), rel=1e-3), "beyond what float16 holds"
    assert "watch/grad_norm/unused" not in found
    assert "watch/param_norm/e" in found
    assert counted(offline()) == {}


def test_weights_that_are_quantised_are_left_out_and_that_is_said_once(run, offline, caplog) -> None:
    model = small()
    model.q = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    model.f8 = nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn), requires_grad=False)
    model.c = nn.Parameter(torch.full((1,), 3 + 4j), requires_grad=False)
    run.watch(model, every=1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = math.hypot(5, *(parameter.detach().norm().item() for parameter in trained))
    for _ in range(2):
        model[2](torch.tanh(model[0](torch.ones(2, 3)))).sum().backward()
        torch.optim.SGD(trained, lr=0.0).step()
        run.log({"x": 1.0})
    run.finish()
    found = {key: value for key, _, value in numbers(offline())}
    assert found["watch/param_norm"] == pytest.approx(expected, rel=1e-6)
    assert "watch/grad_norm" in found
    assert counted(offline()) == {"not_watched": 2}
    [said] = [record.getMessage() for record in caplog.records]
    assert "leaves out 2 of 6 parameters: 'q' is torch.uint8" in said


def test_a_fused_optimizer_that_unscales_by_itself_shows_unscaled_gradients(run, offline) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    run.watch(model, every=1)
    (model(torch.ones(2, 3)).square().mean() * 1024).backward()
    scaled = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1024.0), torch.tensor(0.0)  # as GradScaler.step does
    optimizer.step()
    run.log({"x": 1.0})
    run.finish()
    found = {key: value for key, _, value in numbers(offline())}
    assert found["watch/grad_norm"] == pytest.approx(scaled / 1024, rel=1e-6)


def test_a_scaler_on_the_host_unscales_before_the_hook(run, offline) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    run.watch(model, every=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(2, 3)).float().square().mean()
        run.log({"under autocast": loss})
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    unscaled = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()]).item()
    run.log({"loss": loss})
    run.finish()
    found = {key: value for key, _, value in numbers(offline())}
    assert found["watch/grad_norm"] == pytest.approx(unscaled, rel=1e-5)


def test_what_is_no_model_is_said_and_not_raised(run, offline) -> None:
    run.watch(None)
    run.watch(small(), every=0)
    run.watch(small(), every="often")
    run.finish()
    assert counted(offline())["not_a_model"] == 2
    assert ("not_a_model", "NoneType") in notices(offline())


def test_submodules_are_as_deep_as_there_are_few_enough() -> None:
    names = [f"h.{layer}.{part}.weight" for layer in range(12) for part in ("attention", "mlp", "norm")] + [
        "wte.weight"
    ]
    assert group_by_submodule(names) == [*(f"h.{layer}" for layer in range(12) for _ in range(3)), "wte"]
    assert group_by_submodule(names, groups_max=2)[0] == "h"
    assert set(group_by_submodule(names, groups_max=1)) == {""}
    assert group_by_submodule(["weight", "bias"]) == ["", ""]


@pytest.fixture
def mesh():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_wrapped_and_sharded_models_are_watched_and_what_is_replicated_is_logged(run, mesh, offline) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial

    replicated = nn.parallel.DistributedDataParallel(small())
    run.watch(replicated, every=1, name="ddp")
    sharded = small()
    fully_shard(sharded, mesh=mesh)
    run.watch(sharded, every=1, name="fsdp")
    for model in (replicated, sharded):
        model(torch.ones(2, 3)).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert isinstance(norm, DTensor)
    run.log({"norm": norm, "partial": DTensor.from_local(torch.tensor(1.0), mesh, [Partial()])}, step=1)
    run.finish()
    found = {key: value for key, _, value in numbers(offline())}
    assert found["norm"] == pytest.approx(found["ddp/grad_norm"], rel=1e-6)
    for key in ("grad_norm", "param_norm", "grad_norm/0", "param_norm/2"):
        assert found[f"fsdp/{key}"] == pytest.approx(found[f"ddp/{key}"], rel=1e-6)
    assert notices(offline()) == [("wrapped_tensor", "partial")]


FORKS = """
import os, torch, chiplog
from chiplog.torch import watch
run = chiplog.init(mode="offline", capture_console=False)
model = torch.nn.Linear(1, 1)
run.watch(model)
if (pid := os.fork()) == 0:
    print(len(watch._watching), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
print(len(watch._watching))
"""


def test_a_forked_child_watches_nothing_that_its_parent_watches(chiplog_dir: Path) -> None:
    """The child's run has another label: values of the parent's model would be a second copy there."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")
