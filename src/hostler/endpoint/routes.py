"""Where the model calls of a session go: the upstream, its key and the model's name there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast
from urllib.parse import urlsplit

from hostler.types.errors import CapabilityUnsupported, OptionsMismatch

WireName = Literal["anthropic", "responses", "chat"]

GATEWAY_PREFIX = "litellm_proxy/"
_PATHS: Mapping[WireName, str] = {"anthropic": "/messages", "responses": "/responses", "chat": "/chat/completions"}


@dataclass(frozen=True)
class _Provider:
    """A provider that speaks a wire itself, and the environment variables that its own tools read."""

    name: str
    home: str
    base_variable: str
    key_variable: str


_ANTHROPIC = _Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
_OPENAI = _Provider("openai", "https://api.openai.com", "OPENAI_BASE_URL", "OPENAI_API_KEY")
_PROVIDERS: Mapping[WireName, _Provider] = {"anthropic": _ANTHROPIC, "responses": _OPENAI, "chat": _OPENAI}


@dataclass(frozen=True)
class Route:
    """Where the model calls of a session go. ``base`` may or may not end in ``/v1``; ``model`` is the name to ask
    for upstream; ``wire`` is what the upstream speaks; ``gateway`` says that it is a LiteLLM gateway."""

    base: str
    key: str | None = field(repr=False)
    model: str
    wire: WireName
    gateway: bool

    @property
    def host(self) -> str:
        """The upstream's host and port, for messages."""
        return urlsplit(self.base).netloc

    @property
    def root(self) -> str:
        """The URL that the wire's path is appended to. A base of the OpenAI kind brings its own version path."""
        base = self.base.rstrip("/")
        if self.wire == "anthropic" or self.gateway:
            return base.removesuffix("/v1") + "/v1"
        return base if urlsplit(base).path else base + "/v1"

    @property
    def url(self) -> str:
        """Where model calls are posted."""
        return self.root + _PATHS[self.wire]

    def credentials(self) -> dict[str, str]:
        """The headers that authenticate hostler to the upstream."""
        if not self.key:
            return {}
        headers = {"x-api-key": self.key} if self.wire == "anthropic" else {}
        if self.gateway or self.wire != "anthropic":
            headers["authorization"] = f"Bearer {self.key}"
        return headers


def route_for(
    model: str | None, *, wire: str, api_base: str | None, api_key: str | None, environ: Mapping[str, str]
) -> Route:
    """The route of ``model`` for a program that speaks ``wire``.

    ``litellm_proxy/<group>`` goes to the gateway at ``api_base`` or ``LITELLM_PROXY_API_BASE``, every other name to
    the provider of the wire. Raises OptionsMismatch for what is missing, CapabilityUnsupported when the model's
    provider does not speak the wire.
    """
    if not model:
        raise OptionsMismatch("No model was given. Pass model=, for example model='litellm_proxy/<group>'.")
    if wire not in _PROVIDERS:
        raise CapabilityUnsupported(f"This program speaks the model wire {wire!r}, which hostler does not forward yet.")
    wire = cast(WireName, wire)
    if model.startswith(GATEWAY_PREFIX):
        name = model.removeprefix(GATEWAY_PREFIX)
        base = api_base or environ.get("LITELLM_PROXY_API_BASE")
        base_names, key_variable = "api_base= or set LITELLM_PROXY_API_BASE", "LITELLM_PROXY_API_KEY"
    else:
        provider = _PROVIDERS[wire]
        name = _own_name(model, provider)
        base = api_base or environ.get(provider.base_variable) or provider.home
        base_names, key_variable = f"api_base= or set {provider.base_variable}", provider.key_variable
    if not name:
        raise OptionsMismatch(f"model={model!r} names no model after the prefix.")
    if not base:
        raise OptionsMismatch(f"model={model!r} needs the address of the gateway: pass {base_names}.")
    key = (api_key or environ.get(key_variable) or "").strip()
    if not key:
        raise OptionsMismatch(f"model={model!r} needs a key: pass api_key= or set {key_variable}.")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise OptionsMismatch(f"The key (api_key= or {key_variable}) holds characters that no key has.")
    return Route(_checked(base.strip(), base_names), key, name, wire, model.startswith(GATEWAY_PREFIX))


def _own_name(model: str, provider: _Provider) -> str:
    prefix, slash, rest = model.partition("/")
    if not slash or prefix not in (_ANTHROPIC.name, _OPENAI.name):
        return model
    if prefix == provider.name:
        return rest
    raise CapabilityUnsupported(
        f"model={model!r} belongs to {prefix}, but this program speaks the wire of {provider.name}. Route it through a "
        f"LiteLLM gateway (model='{GATEWAY_PREFIX}<group>'), or translate in this process: pip install "
        f"'hostler[litellm]' (not available yet). For an upstream of the {provider.name} kind that has a model "
        f"of this very name, write model='{provider.name}/{model}'."
    )


def _checked(base: str, names: str) -> str:
    try:
        parts = urlsplit(base)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise OptionsMismatch(f"The model address is not an http(s) URL without a query; check {names}.")
    if parts.username or parts.password:
        raise OptionsMismatch(f"The model address holds a user name or password; pass the key as api_key= ({names}).")
    return base.rstrip("/")
