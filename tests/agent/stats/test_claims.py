"""Which GPUs belong to which rank: what ranks are given and can see, compared with CUDA's choice."""

from typing import Any

import pytest

from chiplog_agent.stats.claims import Claims, bounded_claim, resolve, visible_gpus
from chiplog_agent.stats.frames import Gpu, MigDevice
from tests.support.safeguard import proves

TABLE = "test_each_rank_gets_the_gpus_that_cuda_gives_it"

# As `nvidia-smi -L` prints them: UUIDs in the order of PCI addresses. GPU 2 is the fastest.
A = "GPU-3b53f6a1-9d0e-4c5f-8f5e-1c6f5a0d7e10"
B = "GPU-3b9c1f22-0f4b-4d9a-9a77-5e2f6b8c4d21"
C = "GPU-71de0a33-6c1a-4f7b-b0d1-2a3b4c5d6e32"
M0, M1 = "MIG-0c757cd7-e942-5726-a0b8-0e8fb7067135", "MIG-5f3b2a10-1111-5222-8333-444455556666"
NODE = (Gpu(A, 100.0), Gpu(B, 100.0), Gpu(C, 300.0))
EQUAL = (Gpu(A, 100.0), Gpu(B, 100.0))
MIG = (Gpu(A, 100.0, (MigDevice(M0, 1, 0), MigDevice(M1, 2, 0))), Gpu(B, 100.0))


def under_torchrun(n: int, **claim: Any) -> list[dict[str, Any]]:
    return [claim | {"local": local} for local in range(n)]


@proves(
    "local-rank-owns-gpu", "of several visible GPUs a rank of a launcher owns that of its local rank", condition=False
)
@proves("cuda-order-fastest-first", "indices count as CUDA does, the fastest first", condition=False)
@proves("torch-device-first", "the device that torch uses counts before the local rank", condition=False)
@pytest.mark.parametrize(
    ("gpus", "claims", "expected"),
    [
        pytest.param(EQUAL, [{}], [[A, B]], id="alone, nothing set"),
        pytest.param(EQUAL, under_torchrun(2), [[A], [B]], id="torchrun, nothing set"),
        pytest.param(EQUAL, under_torchrun(2, visible="0,1"), [[A], [B]], id="torchrun, all visible by index"),
        pytest.param(EQUAL, under_torchrun(2, visible="1,0"), [[B], [A]], id="reversed indices"),
        pytest.param(EQUAL, under_torchrun(2, visible=f"{B},{A}"), [[B], [A]], id="torchrun, all visible by UUID"),
        pytest.param(
            EQUAL,
            [{"visible": "0", "local": 0}, {"visible": "1", "local": 1}],
            [[A], [B]],
            id="one each by index, as Slurm and accelerate set it",
        ),
        pytest.param(
            EQUAL,
            [{"visible": A, "local": 0}, {"visible": B, "local": 1}],
            [[A], [B]],
            id="one each by UUID",
        ),
        pytest.param(EQUAL, [{"visible": "GPU-3b5"}, {"visible": "GPU-3b9,GPU-3b5"}], [[A], [B, A]], id="prefixes"),
        pytest.param(EQUAL, [{"visible": "GPU-3b"}], [[]], id="a prefix of two"),
        pytest.param(EQUAL, [{"visible": text} for text in ("", "-1", "NoDevFiles")], [[], [], []], id="none visible"),
        pytest.param(
            EQUAL, [{"visible": "1,-1,0"}, {"visible": "0,0"}, {"visible": "1,7"}], [[B], [], [B]], id="odd lists"
        ),
        pytest.param(NODE, under_torchrun(3), [[C], [A], [B]], id="FASTEST_FIRST by default"),
        pytest.param(NODE, under_torchrun(3, order="PCI_BUS_ID"), [[A], [B], [C]], id="PCI_BUS_ID"),
        pytest.param(
            NODE, [{"visible": "0"}, {"visible": "0", "order": "PCI_BUS_ID"}], [[C], [A]], id="index 0 of both orders"
        ),
        pytest.param(EQUAL, under_torchrun(4), [[A], [B], [A], [B]], id="two ranks share each"),
        pytest.param(
            EQUAL,
            [{"given": ["0"]}, {"given": ["1", "0"], "visible": "1"}, {"given": ["GPU-3b9", A]}, {"given": ["9", "x"]}],
            [[A], [B, A], [B, A], []],
            id="gpu_device_ids, as nvidia-smi counts",
        ),
        pytest.param(NODE, [{"given": ["0"]}], [[A]], id="gpu_device_ids does not follow CUDA's order"),
        pytest.param(
            MIG,
            [
                {"visible": M1},
                {"visible": f"MIG-{A}/1/0"},
                {"visible": "MIG-0c7"},
                {"given": [M0, M1]},
                {"visible": "0"},
                {"visible": "1"},
            ],
            [[M1], [M0], [M0], [M0, M1], [M0], [B]],
            id="MIG names of both forms",
        ),
        pytest.param(
            EQUAL,
            [{"local": 0, "current": 1, "uuid": B[4:]}, {"local": 1, "current": 0, "uuid": ""}, {"current": 1}],
            [[B], [A], [B]],
            id="torch uses another than the local rank's",
        ),
        pytest.param(MIG, [{"local": 0, "current": 0, "uuid": M1[4:]}], [[M1]], id="torch in a MIG instance"),
        pytest.param(EQUAL, [{"visible": "1", "whole": True}, {"whole": True}], [[B], [A, B]], id="rank0 for its node"),
    ],
)
def test_each_rank_gets_the_gpus_that_cuda_gives_it(
    gpus: tuple[Gpu, ...], claims: list[dict[str, Any]], expected: list[list[str]]
) -> None:
    assert [list(resolve(claim, gpus)) for claim in claims] == expected


def test_the_rules_of_visible_devices_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch parses the same texts to indices, and to UUIDs that its caller looks up."""
    cuda = pytest.importorskip("torch.cuda")
    for text in ("0,1", "1,0", "1, 0", "0,-1,1", "-1", "", "x", "1,1", "+1,0", "1gpu,0", "NoDevFiles", "0,,1", "5,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        parsed = cuda._parse_visible_devices()
        known = parsed[: next((n for n, index in enumerate(parsed) if index >= len(EQUAL)), None)]
        assert visible_gpus(text, "", EQUAL) == tuple(EQUAL[index].uuid for index in known), text
    for text in (
        f"{A},{B}",
        "GPU-3b9,GPU-3b5",
        f"{A},1,{B}",
        f"{A},{A}",
        "GPU-3b",
        "GPU-x",
        f"{B},GPU-x,{A}",
        f"{A},GPU-3b53",
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        ordinals = cuda._transform_uuid_to_ordinals(cuda._parse_visible_devices(), [A, B])
        assert visible_gpus(text, "", EQUAL) == tuple((A, B)[index] for index in ordinals), text


RANK, OTHER = b"R" * 16, b"O" * 16


def test_nothing_is_said_before_nvml_has_counted_and_each_result_once() -> None:
    claims = Claims()
    claims.set_claims({RANK: (7, {"local": 0}), OTHER: (8, {"visible": ""})})
    assert claims.take_changes() == []
    claims.set_gpus(EQUAL)
    assert claims.take_changes() == [(RANK, (A,))], "a rank without a claim causes no change"
    assert claims.take_changes() == []


@proves("nvml-corrects-claims", "NVML's process list corrects a claim", value="own")
def test_nvmls_process_list_corrects_a_claim_and_stays_when_the_rank_frees_its_memory() -> None:
    claims = Claims()
    claims.set_gpus(EQUAL)
    claims.set_claims({RANK: (7, {"local": 0}), OTHER: (8, {"visible": ""})})
    claims.take_changes()
    claims.hold(7, [B])
    claims.hold(8, [A])
    claims.hold(9, [A])  # a process of no rank
    assert claims.take_changes() == [(RANK, (B,)), (OTHER, (A,))]
    claims.hold(7, [])
    assert claims.take_changes() == []


@pytest.mark.parametrize("claim", [{"given": ["0"]}, {"whole": True, "visible": "0"}])
def test_what_the_user_gave_is_not_corrected(claim: dict[str, Any]) -> None:
    claims = Claims()
    claims.set_gpus(EQUAL)
    claims.set_claims({RANK: (7, claim)})
    claims.hold(7, [B])
    assert claims.take_changes() == [(RANK, (A,))]


def test_a_rank_that_learns_its_device_is_resolved_again_and_one_that_left_is_forgotten() -> None:
    claims = Claims()
    claims.set_gpus(EQUAL)
    claims.set_claims({RANK: (7, {"local": 0})})
    assert claims.take_changes() == [(RANK, (A,))]
    claims.set_claims({RANK: (7, {"local": 0, "current": 1, "uuid": B[4:]})})
    assert claims.take_changes() == [(RANK, (B,))]
    claims.set_claims({})
    claims.set_claims({RANK: (7, {"local": 0})})
    assert claims.take_changes() == [(RANK, (A,))]


def test_a_gpu_that_falls_off_the_bus_moves_no_rank_to_another() -> None:
    claims = Claims()
    claims.set_gpus(EQUAL)
    claims.set_claims({RANK: (7, {"local": 1})})
    assert claims.take_changes() == [(RANK, (B,))]
    claims.set_gpus(EQUAL[1:])
    assert claims.take_changes() == []


def test_what_a_user_gave_that_names_no_gpu_is_known_once() -> None:
    claims = Claims()
    claims.set_claims({RANK: (7, {"given": ["0", A, "17", "banana", ""]}), b"other": (8, {"visible": "17"})})
    assert claims.take_changes() == claims.take_unknown() == [], "NVML has not answered yet"
    for expected in ([(RANK, "17"), (RANK, "banana")], []):
        claims.set_gpus(EQUAL)
        claims.take_changes()
        assert claims.take_unknown() == expected


def test_a_peers_claim_is_cut_to_what_a_claim_can_be() -> None:
    claim = bounded_claim(
        {
            "given": ["x" * 10_000, 5, None] * 1_000,
            "visible": "0," * 100_000,
            "local": "1",
            "whole": 1,
            "other": "x" * 10_000,
        }
    )
    assert set(claim) == {"given", "visible"}
    assert len(claim["given"]) == 64 and max(map(len, claim["given"])) <= 128 and len(claim["visible"]) <= 8192
    assert bounded_claim("no map") == {}
    for odd in ({"local": -1}, {"local": 10**30}, {"current": -5}, {"given": [{}, b"x"]}, {"visible": "9" * 8000}):
        resolve(bounded_claim(odd), EQUAL)
