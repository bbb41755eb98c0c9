"""What logging from a GPU costs a training: nothing waits for the device, so its queue never runs empty.

One process trains on the GPU in blocks of steps A B A C A B …. In all of them a step computes the same. In B it also
times three phases and logs four scalars that are still on the device. In C, the yardstick, it reads the same four
scalars with `item()`, which trackers that want host numbers make a training do; each read waits for the device. Each
B and C is compared with the mean of the two A around it. Without a GPU there are no figures. A single call is not
timed: it waits while the GPU's queue is full.
"""

import statistics
import time

import torch

from tests.bench.figure import Figure, cpu_s, fresh_node, python, tree

WATCHED_S = 10.0  # of the agent's statistics

TRAINING = """
import statistics, time, torch, chiplog
run = chiplog.init(project="bench", run_id="gpu", label="rank0", capture_console=False)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.randn(512, 2048, device="cuda")
STEPS, PAIRS = 100, 10
clock = time.perf_counter_ns
step = 0
def one(kind):
    global step
    step += 1
    on = kind == "B"
    if on:
        phase = run.phase("forward")
        phase.__enter__()
    loss = model(data).square().mean()
    if on:
        phase.__exit__(None, None, None)
        phase = run.phase("backward")
        phase.__enter__()
    optimizer.zero_grad()
    loss.backward()
    if on:
        phase.__exit__(None, None, None)
        phase = run.phase("optimizer")
        phase.__enter__()
    optimizer.step()
    if on:
        phase.__exit__(None, None, None)
    scalars = {"loss": loss, "a": data[0, 0], "b": data[1, 1], "c": data[2, 2]}
    if on:
        run.log(scalars, step=step)
        run.step()
    elif kind == "C":
        {key: value.item() for key, value in scalars.items()}
def block(kind):
    torch.cuda.synchronize()
    begun = clock()
    for _ in range(STEPS):
        one(kind)
    torch.cuda.synchronize()
    return (clock() - begun) / STEPS / 1e3
for kind in "ABC":
    block(kind)
rows = [(kind, block(kind)) for kind in "ABAC" * PAIRS + "A"]
more = {"B": [], "C": []}
plain = [us for kind, us in rows if kind == "A"]
for index, (kind, us) in enumerate(rows):
    if kind != "A":
        more[kind].append(us - (rows[index - 1][1] + rows[index + 1][1]) / 2)
assert not run._diagnostics.counts, run._diagnostics.counts
run.finish()
print({
    "step": statistics.median(plain), "ours": statistics.median(more["B"]), "item": statistics.median(more["C"]),
})
"""


def measure() -> list[Figure]:
    """Measure on the first GPU; returns no figures without one."""
    if not torch.cuda.is_available():
        return []
    with fresh_node() as node:
        runs = [python(TRAINING, node.environ) for _ in range(3)]
        agent = tree(node.processes["agent"].pid)
        before, begun = sum(map(cpu_s, agent)), time.monotonic()
        time.sleep(WATCHED_S)
        percent = 100 * (sum(map(cpu_s, agent)) - before) / (time.monotonic() - begun)
    step, ours, item = (statistics.median(run[key] for run in runs) for key in ("step", "ours", "item"))
    beside = f"the same four scalars by item(): {item:.0f} µs; a step: {step:.0f} µs; {torch.cuda.get_device_name(0)}"
    return [
        Figure("GPU: log() of four scalars, three phases, a step: longer by", ours, "µs", yardstick=beside),
        Figure("GPU: CPU of the agent with all statistics", percent, "%", yardstick="of one core, once a second"),
    ]
