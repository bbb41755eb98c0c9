"""Train a small character-level GPT on the source code of Python's standard library, logged from every rank.

    python char_gpt.py                                      one process, no launcher
    torchrun --standalone --nproc-per-node 2 char_gpt.py    data-parallel: gloo on CPUs, nccl on GPUs

No line here passes the rank or the shared run to chiplog: it reads both from the launcher's variables. A training
script has to add only the calls in `main` and `train`: `chiplog.init`, `run.phase`, `run.log`, `run.finish`.
"""

import argparse
import math
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its conventional name
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import chiplog

SAMPLE_CHARS = 200
EVAL_BATCHES = 4  # enough for two stable digits; more would make the other ranks wait longer for rank 0
HELD_OUT = 0.05  # the share of the text, at its end, that is never trained on


class Block(nn.Module):
    """One transformer layer: causal self-attention, then a two-layer MLP, each behind a layer norm and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map activations of shape (batch, time, width) to the same shape."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, width / heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class CharGPT(nn.Module):
    """A decoder-only transformer over characters, with learned positions and tied input and output embeddings."""

    def __init__(self, vocabulary: int, block_size: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if (
                parameter.dim() == 2
            ):  # the embedding is the output layer too: a standard deviation of 1 would start far off
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (batch, time, vocabulary) for the character after each of `ids` (batch, time)."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.blocks(self.characters(ids) + self.positions(positions))
        return F.linear(self.norm(x), self.characters.weight)


def read_corpus(bytes_max: int) -> tuple[Tensor, str]:
    """Return the text as indices (int64, on the CPU) and its vocabulary, the same on every rank of one Python.

    Real text that every machine has: the modules of the standard library in the order of their names. Characters beyond
    ASCII become "?", so that a few exotic tables do not double the vocabulary.
    """
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace").encode("ascii", "replace")
        if len(text) >= bytes_max:
            break
    raw = torch.frombuffer(text[:bytes_max], dtype=torch.uint8).long()
    present, indices = torch.unique(raw, return_inverse=True)
    return indices, "".join(map(chr, present.tolist()))


def draw_batch(text: Tensor, batch_size: int, block_size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, both (batch, block): random windows of `text`, the targets one character later."""
    starts = torch.randint(len(text) - block_size, (batch_size, 1), generator=generator)
    windows = text[(starts + torch.arange(block_size + 1)).to(text.device)]
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats per character, a 0-dim tensor on the model's device."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Return the rate at `step`: warm-up over a twentieth of the run, then a cosine down to a tenth of the peak."""
    warm_up = max(1, args.steps // 20)
    if step < warm_up:
        return args.lr * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, args.steps - warm_up)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def evaluate(model: nn.Module, text: Tensor, args: argparse.Namespace) -> Tensor:
    """Return the mean loss over the same few held-out batches every time."""
    generator = torch.Generator().manual_seed(0)
    batches = [draw_batch(text, args.batch_size, args.block_size, generator) for _ in range(EVAL_BATCHES)]
    return torch.stack([loss_of(model, *batch) for batch in batches]).mean()


@torch.no_grad()
def sample(model: nn.Module, vocabulary: str, block_size: int, device: torch.device) -> str:
    """Return characters drawn one after the other from the model, starting after a line break."""
    ids = torch.tensor([[vocabulary.index("\n")]], device=device)
    for _ in range(SAMPLE_CHARS):
        chances = model(ids[:, -block_size:])[0, -1].softmax(dim=-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1)[None]], dim=1)
    return "".join(vocabulary[i] for i in ids[0, 1:].tolist())


def train(run: chiplog.Run, args: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
    """Run the training loop on this rank; rank 0 also evaluates, prints and samples."""
    torch.manual_seed(args.seed)  # one initialisation for all ranks
    text, vocabulary = read_corpus(args.data_bytes)
    split = int(len(text) * (1 - HELD_OUT))
    training, held_out = text[:split].to(device), text[split:].to(device)
    batches = torch.Generator().manual_seed(args.seed * 1009 + rank)  # other data on every rank

    core = CharGPT(len(vocabulary), args.block_size, args.layers, args.heads, args.width).to(device)
    model = DistributedDataParallel(core) if world > 1 else core
    optimizer = torch.optim.AdamW(core.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    if rank == 0:
        parameters = sum(p.numel() for p in core.parameters())
        print(f"char-gpt: {parameters:,} parameters, {len(text):,} characters, {world} rank(s) on {device}", flush=True)

    for step in range(args.steps):
        began = time.perf_counter()
        with run.phase("data"):
            if args.straggler_ms and rank == world - 1:
                time.sleep(args.straggler_ms / 1000)
            batch = draw_batch(training, args.batch_size, args.block_size, batches)
        with run.phase("forward"):
            loss = loss_of(model, *batch)
        with run.phase("backward"):  # under DDP the ranks wait for each other in here
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
        with run.phase("optimizer"):
            norm = nn.utils.clip_grad_norm_(core.parameters(), 1.0)
            lr = optimizer.param_groups[0]["lr"] = learning_rate(step, args)
            optimizer.step()
        rate = batch[0].numel() / (time.perf_counter() - began)  # of this rank
        # Tensors go in as they are: calling .item() on a GPU would make every step wait for the device.
        values = {"train/loss": loss.detach(), "train/grad_norm": norm, "train/lr": lr, "train/tokens_per_s": rate}
        run.log(values, step=step)

        if rank == 0 and (step % args.eval_every == 0 or step == args.steps - 1):
            with run.phase("eval"):  # on the bare model: a forward through DDP would wait for the other ranks
                eval_loss = evaluate(core, held_out, args)
            run.log({"eval/loss": eval_loss}, step=step)
            print(
                f"step {step:4d}  loss {loss:.3f}  eval {eval_loss:.3f}  {rate:,.0f} characters/s per rank", flush=True
            )

    if rank == 0:
        run.log({"sample": sample(core, vocabulary, args.block_size, device)}, step=args.steps - 1)


def parse_args() -> argparse.Namespace:
    """Read the command line. The defaults take about 40 s with two ranks on two CPU cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=800, help="optimizer steps (default: %(default)s)")
    add("--batch-size", type=int, default=16, help="windows per rank and step (default: %(default)s)")
    add("--block-size", type=int, default=64, help="characters per window (default: %(default)s)")
    add("--layers", type=int, default=2, help="transformer layers (default: %(default)s)")
    add("--heads", type=int, default=4, help="attention heads, a divisor of --width (default: %(default)s)")
    add("--width", type=int, default=128, help="width of the embeddings (default: %(default)s)")
    add("--lr", type=float, default=3e-3, help="peak learning rate (default: %(default)s)")
    add("--seed", type=int, default=1, help="of the weights and the batches (default: %(default)s)")
    add("--data-bytes", type=int, default=2_000_000, help="how much of the library to read (default: %(default)s)")
    add("--eval-every", type=int, default=100, help="steps between two evaluations (default: %(default)s)")
    slow = "make the highest rank slow ON PURPOSE: it sleeps this long in the data phase of every step (default: 0)"
    add("--straggler-ms", type=float, default=0, help=slow)
    return parser.parse_args()


def main() -> None:
    """Find this process's rank and device, open the run, train, and clean up."""
    args = parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank, local_world = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    run = chiplog.init(project="char-gpt", config={**vars(args), "world_size": world})

    gpus = torch.cuda.device_count()
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    elif local_world > 1:
        torch.set_num_threads(1)  # every rank would take every core, and they would slow each other down
    if world > 1:
        dist.init_process_group("nccl" if gpus >= local_world else "gloo")  # nccl refuses two ranks on one GPU
    train(run, args, rank, world, device)
    run.finish()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
