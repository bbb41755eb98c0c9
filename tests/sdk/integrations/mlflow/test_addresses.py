"""Addresses of stores and artifacts: each has one meaning, and a wrong one is one line."""

import pytest

from chiplog.integrations.mlflow.addresses import Address, artifact_uri, parse_address, parse_artifact_uri


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("chiplog://", Address()),
        ("chiplog:///data/runs", Address("/data/runs")),
        ("chiplog://node:7077", Address(None, "tcp://node:7077")),
        ("chiplog://[::1]:7077?strict=1&runs=process", Address(None, "tcp://[::1]:7077", True, True)),
        ("chiplog:///a%20b?strict=0", Address("/a b")),
    ],
)
def test_an_address_is_parsed_and_its_artifacts_lead_back(uri: str, address: Address) -> None:
    assert parse_address(uri) == address
    place, parts = parse_artifact_uri(artifact_uri(address, "run 1/2") + "/model")
    assert (place.directory, place.collector) == (address.directory, address.collector)
    assert parts == ["run 1/2", "artifacts", "model"]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("chiplog://node", "write chiplog://, chiplog:///DIR or chiplog://HOST:PORT"),
        ("chiplog://node:1/path", "is not an address"),
        ("chiplog:/x", "'chiplog:/x' is not an address; write chiplog://, chiplog:///DIR or chiplog://HOST:PORT"),
        ("chiplog:x", "'chiplog:x' is not an address"),
        ("chiplog:", "write chiplog://, chiplog:///DIR or chiplog://HOST:PORT"),
        ("chiplog://?strict=yes", "the option strict=yes is not known"),
        ("chiplog://?mode=x", "give one of strict=0, strict=1, runs=launch, runs=process"),
    ],
)
def test_a_wrong_address_is_one_line(uri: str, words: str) -> None:
    with pytest.raises(ValueError, match="chiplog://") as raised:
        parse_address(uri)
    assert words in str(raised.value)


def test_an_address_of_another_scheme_has_no_artifacts() -> None:
    with pytest.raises(ValueError, match="its scheme is chiplog"):
        parse_artifact_uri("s3://bucket/artifacts")
