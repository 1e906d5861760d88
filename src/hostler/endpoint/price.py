"""What a model call costs: the gateway's own word, else bundled price lists, else the gateway's price list."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from . import bodies
from .http_client import ERRORS, HttpClient, new_client
from .routes import Route
from .wires import Seen, Tokens, number

COST_HEADER = "x-litellm-response-cost"
_PROVIDERS = {"anthropic": "anthropic", "responses": "openai", "chat": "openai", "gemini": "google"}
_INFO_PATHS = ("/model/info", "/v1/model/info")
_INFO_TIMEOUT = 5.0
_log = logging.getLogger(__name__)
Connect: TypeAlias = Callable[[Route], Awaitable[HttpClient]]


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars per token, as a gateway tells them."""

    input: float
    output: float
    cache_read: float
    cache_write: float

    def cost(self, tokens: Tokens) -> float:
        plain = max(0, (tokens.input or 0) - tokens.cache_read - tokens.cache_write)
        cached = tokens.cache_read * self.cache_read + tokens.cache_write * self.cache_write
        return plain * self.input + cached + (tokens.output or 0) * self.output


@dataclass(frozen=True, slots=True)
class _Listing:
    """What the bundled lists say of a route's model. ``steps``: numbers of input tokens above which another price holds
    for all tokens of a call; None when its cost is no sum of prices per token. ``prices``: of a token that is read,
    read from the cache, written to it, written to it for an hour, made; by how many steps a call is above."""

    until: float
    steps: tuple[int, ...] | None
    prices: dict[int, tuple[Decimal, ...]]


def listed(route: Route, tokens: Tokens) -> float | None:
    """The cost by the bundled price lists, or None for a model that they do not know."""
    given, hour = tokens.input or 0, tokens.cache_write_1h
    plain, write = given - tokens.cache_read - tokens.cache_write, tokens.cache_write - hour
    listing = _listing(route)
    if listing.steps is None or min(plain, write) < 0:
        return _calculated(route, tokens)
    step = bisect.bisect_left(listing.steps, given)
    if (prices := listing.prices.get(step)) is None:
        prices = listing.prices[step] = _prices(route, listing.steps[step - 1] + 1 if step else 1)
    counts = (plain, tokens.cache_read, write, hour, tokens.output or 0)
    return float(sum((count * price for count, price in zip(counts, prices, strict=True)), Decimal(0)))


def _calculation(route: Route, tokens: Tokens) -> Any:
    """The lists' own calculation, which takes a third of a millisecond, or None."""
    genai_prices = _price_lists()
    calc: Any = genai_prices.calc_price  # its overloads forbid a choice at run time
    usage = genai_prices.Usage(
        input_tokens=tokens.input or 0,
        output_tokens=tokens.output or 0,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
        **({"cache_write_1h_tokens": tokens.cache_write_1h} if tokens.cache_write_1h else {}),
    )
    for name, place in _lookups(route):
        try:
            return calc(usage, name, **place)
        except (LookupError, ValueError):  # ValueError: a list without a price for what was used
            continue
    return None


def _calculated(route: Route, tokens: Tokens) -> float | None:
    found = _calculation(route, tokens)
    return None if found is None else float(found.total_price)


def _listing(route: Route) -> _Listing:
    kept = _listings.get(route)
    if kept is not None and time.monotonic() < kept.until:
        return kept
    if len(_listings) >= _LISTINGS:
        _listings.clear()
    made = _listings[route] = _Listing(time.monotonic() + _LISTED_FOR, _steps(route), {})
    return made


def _steps(route: Route) -> tuple[int, ...] | None:
    plain = _calculation(route, Tokens(1, 1))
    cached = _calculation(route, Tokens(3, 1, cache_read=1, cache_write=2, cache_write_1h=1))
    if plain is None or cached is None or plain.model_price is not cached.model_price:
        return None  # unknown, or in one list without a price for what another list has one for
    prices = [price for price in vars(plain.model_price).values() if price is not None]
    if not all(isinstance(price, Decimal) or hasattr(price, "tiers") for price in prices):
        return None
    return tuple(sorted({tier.start for price in prices for tier in getattr(price, "tiers", ())}))


def _prices(route: Route, n: int) -> tuple[Decimal, ...]:
    """The prices per token in a call with ``n`` input tokens."""

    def total(**counts: int) -> Decimal:
        price: Decimal = _calculation(route, Tokens(n, **{"output": 0, **counts})).total_price
        return price

    given = total(), total(cache_read=n), total(cache_write=n), total(cache_write=n, cache_write_1h=n)
    return *(price / n for price in given), total(output=1) - total()


def _price_lists() -> Any:
    import genai_prices

    if not hasattr(genai_prices, "calc_price"):
        # This process was forked while another thread of its parent imported it: the half that is here stays a half.
        for name in [n for n in sys.modules if n.partition(".")[0] == "genai_prices"]:
            del sys.modules[name]
        import genai_prices
    return genai_prices


def _lookups(route: Route) -> list[tuple[str, dict[str, str]]]:
    """Names and places to look a route's model up under, best first."""
    last = route.model.rpartition("/")[2]
    if route.gateway:
        return [(route.model, {}), (last, {})]
    provider = {"provider_id": _PROVIDERS[route.wire]}
    return [(route.model, {"provider_api_url": route.base}), (route.model, provider), (route.model, {}), (last, {})]


def rates_of(info: object) -> Rates | None:
    """The rates in a ``model_info`` of a LiteLLM gateway, or None when it has no price."""
    if not isinstance(info, Mapping):
        return None
    paid, made = number(info.get("input_cost_per_token")), number(info.get("output_cost_per_token"))
    if paid is None or made is None:
        return None
    read, write = number(info.get("cache_read_input_token_cost")), number(info.get("cache_creation_input_token_cost"))
    return Rates(paid, made, paid if read is None else read, paid if write is None else write)


_LISTED_FOR = 60.0  # s: some prices change with the hour
_LISTINGS = 100
_listings: dict[Route, _Listing] = {}

# What was found out, by route. A gateway that did not answer is asked again after a while.
_in_lists: dict[Route, bool] = {}
_told: dict[Route, tuple[float, Rates | None]] = {}
_asking: dict[Route, asyncio.Task[None]] = {}
_ASK_AGAIN = 60.0


def loaded(route: Route) -> bool:
    """Whether `cost` is ready for this route: `load` would do nothing."""
    if route not in _in_lists:
        return False
    asked, rates = _told.get(route, (-_ASK_AGAIN, None))
    return _in_lists[route] or not route.gateway or rates is not None or time.monotonic() - asked < _ASK_AGAIN


async def load(route: Route, connect: Connect | None = None) -> None:
    """Make `cost` ready for this route. Never raises for what an upstream does."""
    if route not in _in_lists:
        # the price lists take a quarter of a second to import: not on the loop
        _in_lists[route] = await asyncio.to_thread(listed, route, Tokens(0, 0)) is not None
    if loaded(route):
        return
    task = _asking.get(route)
    if task is None or task.get_loop() is not asyncio.get_running_loop():
        task = _asking[route] = asyncio.create_task(_remember(route, connect))
    await asyncio.shield(task)


async def _remember(route: Route, connect: Connect | None) -> None:
    rates = None
    try:
        if connect is not None:
            rates = await _ask(route, await connect(route))
        else:
            async with contextlib.aclosing(await new_client(secure=urlsplit(route.base).scheme == "https")) as own:
                rates = await _ask(route, own)
    finally:
        _told[route] = (time.monotonic(), rates)
        _asking.pop(route, None)


async def known(route: Route) -> bool:
    """Whether the cost of calls on this route can be told, so that a budget in dollars can be held."""
    await load(route)
    return _in_lists[route] or _rates(route) is not None


def cost(route: Route, seen: Seen, headers: Mapping[str, str]) -> float | None:
    """The cost of one answered call in dollars, or None when it is unknown."""
    if (told := number(headers.get(COST_HEADER))) is not None:
        return told
    if seen.cost is not None:
        return seen.cost
    if not seen.tokens.known:
        return None
    if (rates := _rates(route)) is not None:
        return rates.cost(seen.tokens)
    # A route that has not been looked up yet (its first call came at once) is looked up here.
    return listed(route, seen.tokens) if _in_lists.get(route, True) else None


def _rates(route: Route) -> Rates | None:
    return _told.get(route, (0.0, None))[1]


async def _ask(route: Route, client: HttpClient) -> Rates | None:
    root = route.root.removesuffix("/v1")
    for path in _INFO_PATHS:
        try:
            async with asyncio.timeout(_INFO_TIMEOUT):
                headers = {"authorization": f"Bearer {route.key}"}
                async with await client.send("GET", root + path, headers, silence=_INFO_TIMEOUT) as answer:
                    told = bodies.loads(await answer.read()) if answer.status == 200 else None
            if (rates := _find(told, route.model)) is not None:
                return rates
        except (*ERRORS, ValueError, RuntimeError) as error:  # RuntimeError: too deep, or closed
            _log.debug("The gateway at %s told no prices: %s", route.host, type(error).__name__)
    return None


def _find(answer: Any, model: str) -> Rates | None:
    entries = answer.get("data") if isinstance(answer, Mapping) else None
    found = [
        rates_of(entry.get("model_info"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping) and entry.get("model_name") == model
    ]
    priced = [rates for rates in found if rates is not None]
    # a group may hold several deployments: with different prices the dearest is a safe bound for a budget
    return max(priced, key=lambda r: (r.output, r.input)) if priced and len(priced) == len(found) else None
