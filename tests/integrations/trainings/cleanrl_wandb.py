"""A script as CleanRL's, on two ranks: W&B syncs what SummaryWriters, of torch and of tensorboardX, are given."""

import importlib
import os

import gymnasium
import numpy
import tensorboardX
import torch
from expected import Expected
from torch.utils.tensorboard import SummaryWriter

rank = int(os.environ["RANK"])
torch.distributed.init_process_group("gloo")
SummaryWriter = (SummaryWriter, tensorboardX.SummaryWriter)[rank]
N_ENVS, N_STEPS, N_UPDATES = 2, 32, 3


def make_env():
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))


def add(tag, value, step):
    writer.add_scalar(tag, value, step)
    steps = {"global_step": step} if step not in seen else {}
    seen.add(step)
    added.append((step, {tag: float(value), **steps}))


added, seen = [], set()
args = {"seed": 1 + rank, "learning_rate": 0.1}
wandb = importlib.import_module("wandb")  # as late as CleanRL imports it: below `if args.track`
wandb.init(sync_tensorboard=True, config={"learning_rate": 0.1}, name="CartPole-v1__ppo", save_code=True)
writer = SummaryWriter(f"runs/ppo-{rank}")
writer.add_text("hyperparameters", "|param|value|\n|-|-|\n" + "\n".join(f"|{key}|{args[key]}|" for key in args))
torch.manual_seed(args["seed"])
envs = gymnasium.vector.SyncVectorEnv([make_env] * N_ENVS)
agent = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(agent.parameters(), lr=args["learning_rate"])
observed, _ = envs.reset(seed=args["seed"])
global_step = 0
for update in range(N_UPDATES):
    rewards = []
    for _ in range(N_STEPS):
        global_step += N_ENVS
        actions = torch.distributions.Categorical(logits=agent(torch.tensor(observed))).sample()
        observed, reward, _, _, infos = envs.step(actions.numpy())
        rewards.append(reward)
        for value in infos["episode"]["r"][infos["_episode"]] if "episode" in infos else ():
            add(f"charts/episodic_return_{len(added)}", value, global_step)
    loss = agent(torch.tensor(observed)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    add("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
    add("losses/value_loss", loss.item(), global_step)
    add("losses/third", 1 / 3 + update, global_step)  # not a float32
    add("losses/explained_variance", numpy.mean(rewards), global_step)
envs.close()
writer.close()
wandb.finish()
everywhere = [None, None]
torch.distributed.all_gather_object(everywhere, added)
torch.distributed.destroy_process_group()
if rank == 0:
    expected = Expected("gymnasium")
    for step, values in (entry for of_rank in everywhere for entry in of_rank):
        expected.add(step, values)
    expected.note(
        name="CartPole-v1__ppo", config={"learning_rate": 0.1}, texts=["hyperparameters"], labels=["rank0", "rank1"]
    )
    expected.write()
