"""Secrets on a command line are hidden before they reach the journal; everything else stays readable."""

import os
import subprocess
import sys

import pytest

from chiplog.safety.redaction import REDACTED, is_secret_name, redact_command, redact_text
from tests.support.safeguard import proves
from tests.support.waiting import WAIT_S

SECRET = "hunter2"
RANDOM = "Xq7Rt2Lp9Zk4Wm8Nv3Yb6"
HEX = "0123456789abcdef0123456789abcdef01234567"

# Every one holds one of the words below it in the list of what must not be seen.
SECRETS = [
    ["--token", SECRET],
    ["--hftoken", SECRET],
    ["--accessToken", SECRET],
    ["--hub-token", SECRET],
    ["--use_auth_token", SECRET],
    [f"--token={SECRET}"],
    ["--api-key", SECRET],
    ["--wandb_api_key", HEX],
    [f"--OPENAI_API_KEY={SECRET}"],
    ["--key", SECRET],
    ["--secret-access-key", SECRET],
    ["--credentials", SECRET],
    ["--password", SECRET],
    [f"--password=my pass, {SECRET}"],
    [f"db_password={SECRET}"],
    ["--passphrase", SECRET],
    ["--pat", SECRET],
    ["-p", SECRET],
    [f"-p{SECRET}"],
    ["-u", f"alice:{SECRET}"],
    [f"-ualice:{SECRET}"],
    [f"--user=alice:{SECRET}"],
    ["bash", "-c", f"curl --user alice:{SECRET} -ualice:{SECRET} https://host/x"],
    ["--password", f"-{SECRET}"],
    ["--token", f"-{SECRET}"],
    ["-p", f"-{SECRET}"],
    ["--password", "-token", SECRET],
    ["--password", "-u", f"alice:{SECRET}"],
    ["bash", "-c", f"export A=1; train --password -{SECRET} --lr 1; login --password -p {SECRET}"],
    ["-phunter"],
    ["--hf-tokens", f"{SECRET},b"],
    [f"--api_tokens={SECRET}"],
    ["wandb", "login", HEX],
    ["wandb", "login", f"local-{HEX}"],
    [HEX],
    [f"wandb login {HEX}"],
    ["--wandb", HEX],
    ["--cookie", f"session={SECRET}"],
    ["--dsn", f"https://{SECRET}@sentry.io/1"],
    [f"+trainer.logger.api_key={SECRET}"],
    ["--set", "wandb.api_key", SECRET],
    ["--env", f"WANDB_API_KEY={SECRET}"],
    ["--header", f"Authorization: Bearer {SECRET}"],
    ["-H", f"X-Api-Key: {SECRET}"],
    ["Authorization:", "Bearer", SECRET],
    [f"https://user:{SECRET}@host/x"],
    [f"postgresql://me:p@ss/{SECRET}@db:5432/x"],
    [f"git+https://oauth2:{SECRET}@github.com/o/r.git"],
    [f"https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4&X-Amz-Credential=AK%2F20&X-Amz-Signature={SECRET}"],
    [f"https://a.blob.core.windows.net/c?sv=2022&sig={SECRET}%3D&se=2"],
    [f"https://x.cloudfront.net/a?Expires=1&Signature={SECRET}&Key-Pair-Id=K"],
    [f"https://storage.googleapis.com/b/o?X-Goog-Signature={SECRET}"],
    [f"https://hooks.slack.com/services/T0/B0/{SECRET}"],
    [f'{{"api_key": "{SECRET}", "lr": 1}}'],
    [f'{{\\"api_key\\": \\"{SECRET}\\"}}'],
    ["--config", f'{{"auth": {{"user": "a", "pass": "{SECRET}"}}}}'],
    [f"{{token: {SECRET}, lr: 1}}"],
    ["-c", f"import wandb; wandb.login(key='{SECRET}')"],
    ["bash", "-c", f"export HF_TOKEN={SECRET}; python train.py --token {SECRET}"],
    ["--private_key", f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}"],
    [f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}"],
    ["hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"],
    ["ghp_" + "a1B2" * 9],
    ["glpat-" + "a1B2" * 5],
    ["AKIA" + "ABCD2345" * 2],
    ["xoxb-123456789012-123456789012-abcdef"],
    ["sk-ant-api03-" + "aB3" * 20],
    ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF_123"],
    [RANDOM],
    ["wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"],
]
MUST_NOT_BE_SEEN = (
    SECRET,
    "hunter",
    HEX,
    RANDOM,
    "abcdefghijkl",
    "a1B2a1B2",
    "ABCD2345",
    "123456789012",
    "aB3aB3",
    "abcDEF",
    "K7MDENG",
)

HARMLESS = [
    "train.py --lr 3e-4 lr=3e-4 --wd 1e-2",
    "--data /mnt/data/imagenet2012/train --out /scratch/alice/runs/2026-11-22_gpt",
    "+model.layers=12 ++trainer.devices=8 ~logger hydra.run.dir=outputs/2026",
    "model.tokenizer.pad_token_id=0 data.tokenizer=bpe",
    "--url https://example.com/data/v1.tar.gz?download=1&version=2",
    f"--commit {HEX} --revision 3f2a9b8c",
    f"commit {HEX} --ref {HEX} model.revision={HEX} https://github.com/o/r/tree/{HEX} git+https://h/r.git@{HEX}",
    f"ckpt/{HEX}.bin out/{HEX} --rev={HEX} model-{HEX}.pt",
    "-port 29500 -path=/data -parallel -prefix run12 -ppn 8",
    "--total-tokens 300B --new-tokens 5 --tokens 1e9 --special-tokens a,b --train_tokens 10 --tokens-seen 4",
    "--max-tokens 2048 --num_tokens 1e9 --tokens-per-batch 4096 --n_tokens 5",
    "--tokenizer gpt2 --tokenizer-path /x/tok.json --token-file data/tokens.bin",
    "--pad-token-id 0 --pad-token [PAD] --eos_token </s> --image-token <image> --mask-token-id 103",
    "--keys a,b --key-dim 64 --num-keys 4 keys=[a,b] --key-frames 3 --keypoints 17",
    "--keyboard de --author me --monkey 1 --compass n --passes 3 --patience 5 --pattern *.py",
    "--token --lr 1",
    "--model meta-llama/Llama-2-7b-chat-hf",
    "--model Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4",
    "--ckpt checkpoints/epoch=12-step=3400-val_loss=0.1234.ckpt",
    "--name ViT-B-16_lr3e-4_bs256_AdamW_fp16",
    "--exp resnet50imagenet1k_seed42_run20261122",
    "--rdzv-endpoint=node-1.cluster.local:29500 --rdzv-id=job_1234567",
    "s3://bucket/prefix/part-00000-of-01024.parquet gs://b/o.npz",
    "--betas 0.9,0.999 --milestones [10,20] --device cuda:0 --dtype bf16",
    "trainer.strategy._target_=lightning.pytorch.strategies.DDPStrategy",
    "nvcr.io/nvidia/pytorch:24.05-py3@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "--gpu GPU-8f2c1d3e-1234-5678-9abc-def012345678",
    "--resume runs/3f2a9b8c7d6e5f4a3b2c1d0e9f8a7b6c/last.ckpt --run-id 3f2a9b8c7d6e5f4a3b2c1d0e9f8a7b6c",
    "-m torch.distributed.run --nproc-per-node=8 --nnodes=1:4 --max-restarts=3",
    "git@github.com:org/repo.git https://github.com/org/repo.git",
    "--use-auth-token True --use_cache=false --sigma 0.1 --signal SIGUSR1",
    "--config configs/llama_70b_pretrain.yaml --deepspeed ds_zero3.json",
    '{"lr":0.1,"betas":[0.9,0.95],"name":"adamw"}',
    "--date 2026-11-22T08:49:22.123456Z --seed 1234567890123456789012",
    "--host 10.0.0.1:8080 http://host:8080/path@v1 tcp://127.0.0.1:5555 tcp://[::1]:5555",
    "--scheduler cosine_with_hard_restarts_schedule_with_warmup",
    "CUDA_VISIBLE_DEVICES=0,1,2 OMP_NUM_THREADS=8",
    "--weights IMAGENET1K_V2 --arch EfficientNetV2LargeWithClassifier",
    "-x -vv -O3 -precision bf16 -profile --token-dropout 0.1 --stop-token <|eot|>",
    f"--hf-cache /home/u/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/{HEX}/model-1-of-4.bin",
    "--loss-weights text:1.0,image:0.5 --mixture c4:0.7,wiki:0.3 --schedule 0:1e-4,1000:1e-3",
    "--metric val/top1_accuracy --monitor=val_loss --next-token-loss 1",
    "--api-url https://api.example.com/v1 --secret-file /run/secrets/x",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128",
    "python -u train.py -n 4 --user alice --tags a,b:c",
]


@proves("named-secret-hidden", "the value behind a name that sounds secret is hidden, however it is written")
@proves("vendor-token-hidden", "a vendor's token is hidden wherever it stands")
@proves("random-text-hidden", "text that only a random generator writes is hidden")
@proves("secret-option-hidden", "the value after an option that sounds secret is hidden", value="None")
@proves(
    "bare-40-digits-hidden",
    "a bare text of 40 hexadecimal digits is hidden unless something names it a commit",
    part="and not _is_key(run)",
)
@proves(
    "dashed-secret-hidden",
    "a value that begins with a dash is hidden after a secret name",
    part='argument.startswith("--")',
    new="_is_option(argument)",
)
@proves("login-hidden", "a login in an option's own argument is hidden")
@pytest.mark.parametrize("arguments", SECRETS, ids=" ".join)
def test_a_secret_is_hidden(arguments: list[str]) -> None:
    shown = " ".join(redact_command(arguments))
    assert REDACTED in shown
    assert not [word for word in MUST_NOT_BE_SEEN if word in shown], shown


@proves("plain-text-readable", "what is no secret stays readable", value="False")
@pytest.mark.parametrize("line", HARMLESS)
def test_what_is_no_secret_stays_readable(line: str) -> None:
    assert redact_command(line.split(" ")) == line.split(" ")


def test_what_stands_around_a_secret_stays_readable() -> None:
    assert redact_command(["--hftoken", "x", "--lr", "1"]) == ["--hftoken", REDACTED, "--lr", "1"]
    assert redact_text('{"api_key": "x", "lr": 1}') == '{"api_key": "***", "lr": 1}'
    assert redact_text("https://u:p@h/d?sig=x&v=1") == "https://***@h/d?sig=***&v=1"
    assert redact_text("A=1 TOKEN=x python train.py") == "A=1 TOKEN=*** python train.py"


@pytest.mark.parametrize(
    "name", ["PYTORCH_HUB_APIKEY", "NCCL_TOKEN", "apiKey", "HF-Token", "x_pass", "sig", "AWS_SECRET_ACCESS_KEY"]
)
def test_a_name_sounds_secret_in_any_spelling(name: str) -> None:
    assert is_secret_name(name)


def test_half_a_secret_is_never_shown_because_the_other_half_was_cut_off() -> None:
    hidden = "password='" + "x" * 3_900 + "' " + "sk-" + "aB3" * 60
    assert "aB3" not in redact_text(hidden)
    long = redact_command(["--steps", "x y " * 20_000, "--token", SECRET])
    assert len(str(long)) < 20_000
    assert SECRET not in str(long)


@pytest.mark.full
def test_a_text_of_any_shape_takes_a_bounded_time() -> None:
    """No expression has quadratic cost: the test's own limit would detect it."""
    for piece in ("a", "a-", "://", "a=b ", "--token ", "{", '"', "\\", "key='", "A1b2", "https://u:", "sk-", "a.b-c="):
        redact_command([piece * (1_000_000 // len(piece))] * 3)


@proves(
    "secret-hidden-before-journal",
    "a secret is hidden before the journal",
    part="redact_command(launched or command_line())",
    new="(launched or command_line())",
)
def test_no_secret_of_a_command_line_reaches_a_file(chiplog_dir, tmp_path) -> None:
    """Whatever is written on the way, in journals or elsewhere, holds no secret. Of three variables, none either."""
    script = tmp_path / "train.py"
    script.write_text(
        "import chiplog\n"
        "run = chiplog.init(run_id='r', mode='offline', capture_console=False)\n"
        "run.log({'x': 1.0})\n"
        "run._environment.start()\n"
        "run._environment._thread.join()\n"
        "run.finish()\n"
    )
    arguments = [argument for arguments in SECRETS for argument in arguments]
    environ = {
        "CHIPLOG_SURROUNDINGS": "1",
        "PYTORCH_HUB_APIKEY": SECRET,
        "NCCL_AUTH": SECRET,
        "GLOO_X": f"token={SECRET}",
    }
    command = [sys.executable, str(script), "--lr", "0.125", *arguments]
    subprocess.run(command, env=os.environ | environ, timeout=WAIT_S, check=True)
    written = b"".join(path.read_bytes() for path in chiplog_dir.rglob("*") if path.is_file())
    assert b"0.125" in written
    assert not [word for word in MUST_NOT_BE_SEEN if word.encode() in written]


def test_an_import_of_chiplog_compiles_nothing_of_this() -> None:
    script = "import sys, chiplog; sys.exit('chiplog.safety.redaction' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=WAIT_S, check=True)
