"""Histograms of gradients and parameters, every so many backward passes."""

import torch

from chiplog.integrations.wandb.model_watch import Watch


def test_each_parameter_is_logged_at_each_nth_pass_until_the_end() -> None:
    model, logged = torch.nn.Linear(2, 1), []
    watch = Watch(model, "all", 2, lambda key, values: logged.append((key, tuple(values.shape))))
    for _ in range(4):
        model(torch.ones(3, 2)).sum().backward()
    shapes = {"weight": (1, 2), "bias": (1,)}
    assert set(logged) == {(f"{kind}/{name}", shapes[name]) for kind in ("gradients", "parameters") for name in shapes}
    assert len(logged) == 8
    watch.stop()
    model(torch.ones(3, 2)).sum().backward()
    model(torch.ones(3, 2)).sum().backward()
    assert len(logged) == 8


def test_sparse_gradients_are_logged_whole() -> None:
    model, logged = torch.nn.Embedding(4, 2, sparse=True), []
    Watch(model, "gradients", 1, lambda key, values: logged.append((key, tuple(values.shape))))
    model(torch.tensor([1, 2])).sum().backward()
    assert logged == [("gradients/weight", (4, 2))]
