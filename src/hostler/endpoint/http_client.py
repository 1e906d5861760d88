"""The HTTP client that upstreams are asked with: the app's proxies and certificates, and nothing kept but connections."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
import httpx

CONNECT_TIMEOUT = 5.0
ERRORS = (aiohttp.ClientError, TimeoutError)  # of the network and the upstream, while asking and while reading
_KEPT = 30.0  # s that a connection without a call is kept
_HEAD_LIMIT = 100 * 1024  # bytes of a line in an answer's head
_FIELDS_LIMIT = 1000
_LARGE = 2**20  # bytes of a body from which on it is written piece by piece


class HttpClient:
    """Keeps no cookies (it serves many sessions), follows no redirect (it carries keys), reads no passwords from files
    and adds no header that was not given, but for what HTTP needs and `Accept`. It belongs to the loop that it was made on."""

    def __init__(self, session: aiohttp.ClientSession, proxies: Mapping[str, str]) -> None:
        self._session = session
        self._proxies = proxies

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes = b"", *, silence: float
    ) -> aiohttp.ClientResponse:
        """The answer with its body still to be read: `piece` by piece, at most ``silence`` seconds apart. Raises
        `ERRORS`, and ValueError for a header that cannot be sent."""
        timeout = aiohttp.ClientTimeout(connect=2 * CONNECT_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        async with asyncio.timeout(2 * CONNECT_TIMEOUT + 2 * silence):  # an upstream that does not read is silent, too
            return await self._session.request(
                method,
                url,
                headers=headers,
                data=io.BytesIO(content) if len(content) > _LARGE else content or None,
                proxy=self._proxy(url),
                allow_redirects=False,
                timeout=timeout,
            )

    async def aclose(self) -> None:
        await self._session.close()

    def _proxy(self, url: str) -> str | None:
        if not self._proxies:
            return None
        parts = urlsplit(url)
        if any(proxy_bypass(name) for name in (parts.hostname or "", parts.netloc)):
            return None
        return self._proxies.get(parts.scheme) or self._proxies.get("all")


async def new_client(*, secure: bool) -> HttpClient:
    """``secure``: for https upstreams; certificates take a while to load, so that another client trusts nobody.
    Raises what keeps it from being made: certificates that cannot be read, a proxy that makes no sense."""
    proxies = _proxies()
    if secure or any(proxy.startswith("https:") for proxy in proxies.values()):
        context = await asyncio.to_thread(httpx.create_ssl_context)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=context, limit=0, keepalive_timeout=_KEPT, resolver=aiohttp.ThreadedResolver()
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Content-Type"),
        max_line_size=_HEAD_LIMIT,
        max_field_size=_HEAD_LIMIT,
        max_headers=_FIELDS_LIMIT,
    )
    return HttpClient(session, proxies)


def _proxies() -> dict[str, str]:
    """The proxies of the environment by the scheme of what is asked through them, or ``all``."""
    proxies: dict[str, str] = {}
    for scheme, address in getproxies_environment().items():
        if scheme in ("http", "https", "all") and address:
            proxies[scheme] = proxy = address if "://" in address else f"http://{address}"
            parts = urlsplit(proxy)
            _ = parts.port  # raises when it is no number
            if parts.scheme not in ("http", "https"):
                raise ValueError(f"a proxy of the kind {parts.scheme}:// cannot be used")
    return proxies


async def piece(response: aiohttp.ClientResponse, *, as_cut: bool = False) -> bytes:
    """The next bytes of a body as they came, or none at its end; ``as_cut``: no more of them than its sender put into
    one chunk. Raises `ERRORS`."""
    content = response.content
    try:
        return (await content.readchunk())[0] if as_cut else await content.readany()
    except ERRORS:
        if left := content._read_nowait(-1):  # what came before the end; aiohttp would drop it
            return left
        raise


def headers_of(response: aiohttp.ClientResponse) -> dict[str, str]:
    """The headers by their names in small letters; what came twice is joined."""
    headers: dict[str, str] = {}
    for raw_name, raw in response.raw_headers:
        name, value = raw_name.decode("latin-1").lower(), _text(raw)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def is_lasting(error: Exception) -> bool:
    """Whether another attempt would end in the same way."""
    if isinstance(error, aiohttp.ClientPayloadError):
        return isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError)
    return isinstance(error, (ValueError, aiohttp.ClientHttpProxyError))


def words_of(error: Exception) -> str:
    """What an error says, without the address that it may name: a proxy's holds its password."""
    if isinstance(error, aiohttp.InvalidURL):
        return "the address makes no sense"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"{error.status} {error.message}"
    if isinstance(error, aiohttp.ClientResponseError):
        return " ".join(error.message.split())
    return " ".join(str(error).split()) or type(error).__name__


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
