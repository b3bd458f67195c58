"""The gateway: the only door of a federation. It lets Flower's fleet service through, and nothing else.

Flower 1.41 serves nodes, commands and apps on one port, and whoever reaches it may register a key and start a run, that
is, have code run on every node. So the SuperLink listens on its own machine alone, and nodes connect to the gateway:

    nodes  -- TLS -->  gateway  -- TLS, on one machine -->  SuperLink
    POST /v1/fleet/*   goes through; all else is refused

A request is read whole before it goes on, up to a size that no part of an answer exceeds (Flower cuts arrays into parts
of 5 MiB), and so is the SuperLink's answer. The nodes' own signatures are checked by the SuperLink.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fedsps.deploy.keys import Keys
from fedsps.errors import ConfigurationError

try:
    import httpx
    import uvicorn
except ImportError as error:
    raise ConfigurationError("a federation needs Flower: pip install 'fedsps[flower]'") from error

PATH = re.compile(rb"/v1/fleet/[a-z-]+")
MOST = 8 * 2**20  # bytes of a request
SECONDS = 120.0  # for a request to come in, and for the SuperLink to answer it
AT_ONCE = 256  # connections of nodes
ONWARD = 16  # connections to the SuperLink, which answers at once: each request looks through all of them
WRITTEN = 100  # refusals in the log: more would let a stranger fill the disk
# what belongs to one connection, or is written anew for the next
HOP = frozenset(b"connection keep-alive proxy-authorization te trailer transfer-encoding upgrade host".split())

Headers = list[tuple[bytes, bytes]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass
class Gateway:
    """An ASGI application that hands fleet requests on.

    Attributes:
        superlink: the way to the SuperLink.
        tell: called with each line for the log.
        refused: how many requests were.
    """

    superlink: httpx.AsyncClient
    tell: Callable[[str], None] = lambda line: None
    refused: int = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """One request: refuse it, or hand it on and its answer back."""
        path = bytes(scope.get("raw_path", b""))
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"] or not PATH.fullmatch(path):
            await self._refuse(scope, send, 403, "this is the gateway of a federation: only nodes have business here")
            return
        try:
            async with asyncio.timeout(SECONDS):
                body = await _read(receive)
        except TimeoutError:
            await self._refuse(scope, send, 408, f"the request did not come in within {SECONDS:g} s")
            return
        if body is None:
            await self._refuse(scope, send, 413, f"a request has {MOST} bytes at most")
            return
        headers = _kept(scope["headers"])
        try:
            async with self.superlink.stream("POST", path.decode(), headers=headers, content=body) as response:
                answer = b"".join([part async for part in response.aiter_raw()])
        except httpx.HTTPError as error:
            await self._refuse(scope, send, 502, f"the SuperLink does not answer ({type(error).__name__})")
            return
        # by now the way to the SuperLink is free again: a node that reads slowly, or never, keeps nobody waiting
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": _kept(response.headers.raw)}
        )
        await send({"type": "http.response.body", "body": answer})

    async def _refuse(self, scope: dict[str, Any], send: Send, status: int, why: str) -> None:
        """Answer with the reason, and write it down unless there were too many."""
        self.refused += 1
        if self.refused <= WRITTEN:
            who = (scope.get("client") or ("?",))[0]
            what = f"{scope.get('method', scope['type'])} {bytes(scope.get('raw_path', b''))[:100]!r}"
            self.tell(f"{status} {who} {what}: {why}")
        if self.refused == WRITTEN:
            self.tell("further refusals are not written down")
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": why.encode()})


async def _read(receive: Receive) -> bytes | None:
    """The body of a request; None if it is too long, or breaks off."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            return None
        body += event.get("body", b"")
        if len(body) > MOST:
            return None
        if not event.get("more_body"):
            return bytes(body)


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that travel on."""
    return [(name, value) for name, value in headers if name.lower() not in HOP]


def serve(host: str, port: int, superlink: str, keys: Keys | None, tell: Callable[[str], None]) -> None:
    """Listen until the process is told to end.

    Args:
        host: to listen on.
        port: to listen on.
        superlink: its "host:port"; the gateway trusts it by the federation's CA.
        keys: where the server's certificate and key are; None for a federation without TLS.
        tell: called with each line for the log.

    Raises:
        ConfigurationError: a file of the keys is not there.
    """
    files: dict[str, Any] = {}
    trust: ssl.SSLContext | bool = False
    if keys is not None:
        for path in (keys.ca_certificate, keys.certificate, keys.key):
            if not path.exists():
                raise ConfigurationError(f"{path} is missing: the gateway needs the server's files")
        files = {"ssl_certfile": str(keys.certificate), "ssl_keyfile": str(keys.key)}
        trust = ssl.create_default_context(cafile=keys.ca_certificate)
    client = httpx.AsyncClient(
        base_url=f"{'http' if keys is None else 'https'}://{superlink}",
        verify=trust,
        trust_env=False,  # no proxy between two processes of one machine
        timeout=SECONDS,
        limits=httpx.Limits(max_connections=ONWARD),
    )
    uvicorn.run(
        Gateway(client, tell),
        host=host,
        port=port,
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=AT_ONCE,
        **files,
    )
