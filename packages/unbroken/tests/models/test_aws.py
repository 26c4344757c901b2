"""Requests to Amazon Bedrock: signed with AWS credentials, or with an API key, each to its own path."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hidden_packages import hidden
from yarl import URL

from unbroken import Request, User
from unbroken.errors import Unauthorized, UserError
from unbroken.models.aws import AwsSigner, region_in
from unbroken.models.connect import connect
from unbroken.models.http import HTTPModel
from unbroken_testing import ScriptedServer
from unbroken_wires.deltas import Ended

MODEL = "us.anthropic.claude-sonnet-4-5-v1:0"
ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def _own_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_BEARER_TOKEN_BEDROCK", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def _botocore() -> None:
    pytest.importorskip("botocore", reason="the extra `bedrock` is not installed")


signs = pytest.mark.usefixtures("_botocore")


def signature(url: URL, body: bytes, headers: Mapping[str, str], region: str) -> str:
    """Computed by hand, as Amazon describes it (Signature Version 4)."""
    date = headers["X-Amz-Date"]
    sent = {"content-type": "application/json", "host": url.raw_authority, "x-amz-date": date}
    if token := headers.get("X-Amz-Security-Token"):
        sent["x-amz-security-token"] = token
    canonical = [f"{name}:{value}\n" for name, value in sent.items()]
    names, digest = ";".join(sent), hashlib.sha256(body).hexdigest()
    asked = "\n".join(["POST", quote(url.raw_path, safe="/~"), "", "".join(canonical), names, digest])
    scope = f"{date[:8]}/{region}/bedrock/aws4_request"
    told = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    made = hmac.new(key, told.encode(), hashlib.sha256).hexdigest()
    return f"AWS4-HMAC-SHA256 Credential={ID}/{scope}, SignedHeaders={names}, Signature={made}"


@signs
@pytest.mark.parametrize("token", ["", "a-session-token"])
def test_a_request_is_signed_as_amazon_describes_it(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    endpoint = connect(f"bedrock:{MODEL}", location="eu-central-1").model.endpoint
    assert endpoint.signer is not None
    for url in (endpoint.stream_url, endpoint.whole_url):
        headers = asyncio.run(endpoint.signer.sign(url, b'{"a": 1}'))
        assert headers["Authorization"] == signature(url, b'{"a": 1}', headers, "eu-central-1")
    assert SECRET in endpoint.signer.known


@signs
def test_what_is_sent_is_what_was_signed() -> None:
    async def run() -> None:
        async with ScriptedServer("Hello.", "Hello.") as server:
            plain = connect(f"bedrock:{MODEL}", base_url=server.url).model
            endpoint = replace(plain.endpoint, signer=AwsSigner("bedrock", "us-east-1"))
            for stream in (True, False):
                model = HTTPModel(endpoint, stream=stream)
                request = Request((User.of("Hi"),), stream=stream)
                deltas = [delta async for batch in model.stream(request) for delta in batch]
                assert isinstance(deltas[-1], Ended)
                assert deltas[-1].verdict.whole
                _, body = model.write(request)
                sent = {name.title(): value for name, value in server.headers[-1].items()}
                url = endpoint.stream_url if stream else endpoint.whole_url
                assert sent["Authorization"] == signature(url, body, sent, "us-east-1")
                assert SECRET in model.secrets

    asyncio.run(run())


def test_an_api_key_takes_the_place_of_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "a-key")
    endpoint = connect(f"bedrock:{MODEL}").model.endpoint
    assert endpoint.signer is None
    assert (endpoint.key_header, endpoint.key_prefix) == ("Authorization", "Bearer ")
    path = "https://bedrock-runtime.us-west-2.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-v1%3A0"
    assert (str(endpoint.stream_url), str(endpoint.whole_url)) == (f"{path}/converse-stream", f"{path}/converse")


def test_the_id_of_an_inference_profile_is_one_segment_of_the_path() -> None:
    arn = "arn:aws:bedrock:us-east-1:1:inference-profile/us.x"
    url = connect(f"bedrock:{arn}", api_key="k", location="us-east-1").model.endpoint.whole_url
    assert url.raw_path == "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Ainference-profile%2Fus.x/converse"


def test_a_server_of_your_own_gets_no_signature_and_a_private_endpoint_does() -> None:
    assert connect("bedrock:m", base_url="http://127.0.0.1:9").model.endpoint.signer is None
    pytest.importorskip("botocore", reason="the extra `bedrock` is not installed")
    private = "https://vpce-1.bedrock-runtime.ap-south-1.vpce.amazonaws.com"
    signer = connect("bedrock:m", base_url=private).model.endpoint.signer
    assert signer is not None
    assert signer.region == "ap-south-1"


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("bedrock-runtime.us-east-1.amazonaws.com", "us-east-1"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("127.0.0.1", ""),
        ("models.example", ""),
    ],
)
def test_the_region_stands_in_the_name_of_the_host(host: str, region: str) -> None:
    assert region_in(host) == region


def test_without_a_region_the_setting_is_named() -> None:
    with pytest.raises(UserError, match="pass location=… or set AWS_REGION"):
        connect("bedrock:m", api_key="k")


def test_without_the_extra_its_name_is_told() -> None:
    match = r"_BEARER_TOKEN_BEDROCK, needs botocore .*: pip install 'unbroken\[bedrock\]'"
    with hidden("botocore"), pytest.raises(UserError, match=match):
        connect("bedrock:m", location="us-east-1")


@signs
def test_without_credentials_the_ways_to_give_them_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    signer = AwsSigner("bedrock", "us-east-1")
    with pytest.raises(Unauthorized, match="no AWS credentials for provider `bedrock`: none were found"):
        asyncio.run(signer.sign(URL("https://bedrock-runtime.us-east-1.amazonaws.com/x"), b""))
