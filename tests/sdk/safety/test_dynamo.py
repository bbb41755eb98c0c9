"""Calls inside of torch.compile: they record, and dynamo compiles no file of chiplog."""

import sys
import warnings

import pytest

from tests.support.marks import everyday
from tests.support.sdk_events import counted, numbers, phases


@pytest.mark.parametrize("told", everyday(1, [True, False]), ids=["dynamo told", "dynamo not told"])
def test_a_compiled_region_may_log_time_and_step(run, offline, monkeypatch, told) -> None:
    import torch._dynamo

    from chiplog.safety import dynamo

    if told:
        dynamo.exclude_from_dynamo()
        assert dynamo._excluded
    else:
        monkeypatch.setattr(dynamo, "_excluded", [True])
        rules = sys.modules["torch._dynamo.trace_rules"]
        monkeypatch.setattr(rules, "SKIP_DIRS", [path for path in rules.SKIP_DIRS if "chiplog" not in path])
        rules._recompile_re()
    torch._dynamo.reset()

    @run.phase("decorated")
    def inner(x):
        return x.cos()

    def step(x, number):
        y = x * 2
        with run.phase("forward"):
            y = inner(y) + 1
        run.log({"loss": y.sum(), "host": 1.0}, step=number)
        run.step()
        return y.sin()

    compiled = torch.compile(step, backend="eager")
    with warnings.catch_warnings():
        # Until a tick of the sender thread excludes chiplog, dynamo warns of what it cannot trace, and continues.
        warnings.simplefilter("error" if told else "ignore")
        for number in range(4):
            x = torch.full((3,), float(number))
            assert torch.equal(compiled(x, number), ((x * 2).cos() + 1).sin())
    run.finish()
    found = numbers(offline())
    assert [(key, step) for key, step, _ in found] == [(key, n) for n in range(4) for key in ("loss", "host")]
    assert [value for key, _, value in found if key == "loss"] == pytest.approx(
        [float(((torch.full((3,), float(n)) * 2).cos() + 1).sum()) for n in range(4)]
    )
    assert {name for _, seconds in phases(offline()) for name in seconds} - {"gc"} == {"decorated", "forward", "step"}
    assert counted(offline()) == {}


@pytest.mark.full
def test_dynamo_compiles_no_file_of_ours(run) -> None:
    import torch._dynamo

    from chiplog.safety import dynamo

    dynamo._excluded.clear()
    dynamo.exclude_from_dynamo()
    torch._dynamo.reset()
    seen: list[str] = []

    def backend(graph, inputs):
        seen.extend(str(node.stack_trace) for node in graph.graph.nodes)
        return graph.forward

    compiled = torch.compile(lambda x: (run.log({"x": x.sum()}), x * 2)[1], backend=backend)
    compiled(torch.ones(2))
    assert seen
    assert not [trace for trace in seen if "sdk/chiplog" in trace]
