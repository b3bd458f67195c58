"""The gateway without a network: what a stranger asks for is refused, what a node asks for goes through unchanged."""

import asyncio

import httpx
import pytest

from fedsps.deploy import gateway
from fedsps.deploy.gateway import MOST, WRITTEN, Gateway
from fedsps.deploy.keys import Keys
from fedsps.errors import ConfigurationError


def ask(method, path, body=b"", superlink=None, headers=(), times=1):
    """The status and the body that a client of the gateway gets, what the SuperLink saw, and the log."""
    seen, log = [], []

    def answer(request):
        seen.append(request)
        return httpx.Response(207, stream=httpx.ByteStream(b"from the SuperLink"), headers={"x-own": "1", "te": "x"})

    async def call():
        link = httpx.AsyncClient(transport=httpx.MockTransport(superlink or answer), base_url="https://127.0.0.1:1")
        transport = httpx.ASGITransport(Gateway(link, log.append), client=("10.0.0.9", 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://gateway") as client:
            for _ in range(times):
                request = client.build_request(method, "/", content=body, headers=dict(headers))
                request.url = request.url.copy_with(raw_path=path.encode())
                response = await client.send(request)
            return response

    return asyncio.run(call()), seen, log


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "/v1/fleet//control"),
        ("POST", "//v1/fleet/pull-messages"),
        ("POST", "/v1/fleet/pull-messages?x=/v1/control"),
        ("POST", "/v1/fleet/"),
        ("POST", "/V1/FLEET/pull-messages"),
        ("GET", "/v1/fleet/pull-messages"),
        ("OPTIONS", "/v1/fleet/pull-messages"),
        ("GET", "/docs"),
    ],
)
def test_what_is_not_for_nodes_is_refused(method, path):
    response, seen, log = ask(method, path)
    assert (response.status_code, seen) == (403, [])
    assert "only nodes have business here" in response.text
    assert log[0].startswith(f"403 10.0.0.9 {method} ")


def test_what_a_node_asks_goes_through_and_back_unchanged():
    headers = {"flwr-public-key": "abc", "content-type": "application/x-protobuf", "te": "trailers"}
    response, (request,), log = ask("POST", "/v1/fleet/push-object", b"bytes" * 1000, headers=headers)
    assert request.url == "https://127.0.0.1:1/v1/fleet/push-object"
    assert request.content == b"bytes" * 1000
    assert request.headers["flwr-public-key"] == "abc" and request.headers["content-type"] == "application/x-protobuf"
    assert "te" not in request.headers and request.headers["host"] == "127.0.0.1:1"
    assert (response.status_code, response.content, response.headers["x-own"]) == (207, b"from the SuperLink", "1")
    assert "te" not in response.headers
    assert not log


@pytest.mark.parametrize(("size", "status"), [(MOST, 207), (MOST + 1, 413)])
def test_a_request_has_a_size(size, status):
    response, seen, _ = ask("POST", "/v1/fleet/push-object", bytes(size))
    assert response.status_code == status
    assert len(seen) == (status == 207)


def test_a_superlink_that_does_not_answer_is_a_bad_gateway():
    def gone(request):
        raise httpx.ConnectError("refused")

    response, _, log = ask("POST", "/v1/fleet/pull-messages", superlink=gone)
    assert response.status_code == 502
    assert log[0].endswith("the SuperLink does not answer (ConnectError)")


def test_a_request_that_does_not_come_in_is_given_up(monkeypatch):
    monkeypatch.setattr(gateway, "SECONDS", 0.05)
    sent = []

    async def receive():
        await asyncio.sleep(5)

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "method": "POST", "raw_path": b"/v1/fleet/x", "query_string": b"", "headers": []}
    asyncio.run(Gateway(httpx.AsyncClient())(scope, receive, send))
    assert sent[0]["status"] == 408


def test_a_node_that_reads_slowly_does_not_hold_the_way_to_the_superlink():
    class Answer(httpx.AsyncByteStream):
        is_open = True

        async def __aiter__(self):
            yield b"from the SuperLink"

        async def aclose(self):
            self.is_open = False

    answer, held = Answer(), []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(event):
        held.append(answer.is_open)

    link = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(200, stream=answer)),
        base_url="https://127.0.0.1:1",
    )
    scope = {"type": "http", "method": "POST", "raw_path": b"/v1/fleet/x", "query_string": b"", "headers": []}
    asyncio.run(Gateway(link)(scope, receive, send))
    assert held == [False, False]


def test_a_stranger_cannot_fill_the_log():
    _, _, log = ask("POST", "/" + "x" * 10_000, times=WRITTEN + 20)
    assert len(log) == WRITTEN + 1
    assert max(map(len, log)) < 300


def test_a_gateway_without_its_keys_says_which(tmp_path):
    with pytest.raises(ConfigurationError, match="ca.crt is missing: the gateway needs the server's files"):
        gateway.serve("127.0.0.1", 1, "127.0.0.1:2", Keys(tmp_path), print)
