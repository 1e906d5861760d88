"""Where the model calls of a session go: the upstream, its key and the model's name there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Literal, cast
from urllib.parse import urlsplit

from hostler.types.errors import CapabilityUnsupported, OptionsMismatch

from . import google

WireName = Literal["anthropic", "responses", "chat", "gemini"]

GATEWAY_PREFIX = "litellm_proxy/"
_PATHS: Mapping[WireName, str] = {"anthropic": "/messages", "responses": "/responses", "chat": "/chat/completions"}


@dataclass(frozen=True)
class _Provider:
    """A provider that speaks a wire itself, and the environment variables that its own tools read."""

    name: str
    home: str
    base_variable: str
    key_variable: str
    common: WireName  # what every upstream of its kind speaks: translations ask in it


_ANTHROPIC = _Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "anthropic")
_OPENAI = _Provider("openai", "https://api.openai.com", "OPENAI_BASE_URL", "OPENAI_API_KEY", "chat")
_GOOGLE = _Provider(
    "gemini", "https://generativelanguage.googleapis.com", "GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "gemini"
)
_PROVIDERS: Mapping[WireName, _Provider] = {
    "anthropic": _ANTHROPIC,
    "responses": _OPENAI,
    "chat": _OPENAI,
    "gemini": _GOOGLE,
}
_BY_NAME: Mapping[str, _Provider] = {provider.name: provider for provider in (_ANTHROPIC, _OPENAI, _GOOGLE)}


@dataclass(frozen=True)
class Route:
    """Where the model calls of a session go. ``base`` may or may not end in ``/v1``; ``model`` is the name to ask
    for upstream; ``wire`` is what the upstream speaks; ``gateway`` says that it is a LiteLLM gateway; ``program`` is
    the wire that the program speaks when it is another one, so that its calls are translated."""

    base: str
    key: str | None = field(repr=False)
    model: str
    wire: WireName
    gateway: bool
    program: WireName | None = None

    @property
    def asked(self) -> WireName:
        """The wire in which the program asks."""
        return self.program or self.wire

    @property
    def upstream(self) -> Route:
        """The same route for who speaks the upstream's wire."""
        return replace(self, program=None)

    @property
    def host(self) -> str:
        """The upstream's host and port, for messages."""
        return urlsplit(self.base).netloc

    @property
    def root(self) -> str:
        """The URL that the wire's path is appended to. A base of the OpenAI kind brings its own version path."""
        base = self.base.rstrip("/")
        if self.wire == "gemini":
            return base.removesuffix("/v1").removesuffix("/v1beta") + "/v1beta"
        if self.wire == "anthropic" or self.gateway:
            return base.removesuffix("/v1") + "/v1"
        return base if urlsplit(base).path else base + "/v1"

    @property
    def url(self) -> str:
        """Where model calls are posted; on Google's wire see `url_for`."""
        return self.root + _PATHS[self.wire]

    def url_for(self, method: str) -> str:
        """Where Google's wire posts a call of this method."""
        return self.root + google.path_of(self.model, method)

    def credentials(self) -> dict[str, str]:
        """The headers that authenticate hostler to the upstream."""
        if not self.key:
            return {}
        name = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(self.wire)
        headers = {name: self.key} if name else {}
        if self.gateway or not name:
            headers["authorization"] = f"Bearer {self.key}"
        return headers


def can_translate() -> bool:
    """Whether the ``litellm`` extra is installed."""
    return find_spec("litellm") is not None


def route_for(
    model: str | None,
    *,
    wire: str,
    api_base: str | None,
    api_key: str | None,
    environ: Mapping[str, str],
    translates: Callable[[], bool] = can_translate,
) -> Route:
    """The route of ``model`` for a program that speaks ``wire``.

    ``litellm_proxy/<group>`` goes to the gateway at ``api_base`` or ``LITELLM_PROXY_API_BASE``, a name behind
    ``anthropic/``, ``openai/`` or ``gemini/`` to that provider, every other one to the provider of the wire. Raises OptionsMismatch
    for what is missing, CapabilityUnsupported when the model's provider does not speak the wire and nothing here
    ``translates``.
    """
    if not model:
        raise OptionsMismatch("No model was given. Pass model=, for example model='litellm_proxy/<group>'.")
    if wire not in _PROVIDERS:
        raise CapabilityUnsupported(f"This program speaks the model wire {wire!r}, which hostler does not forward yet.")
    wire = cast(WireName, wire)
    upstream, program = wire, None
    if model.startswith(GATEWAY_PREFIX):
        name = model.removeprefix(GATEWAY_PREFIX)
        base = api_base or environ.get("LITELLM_PROXY_API_BASE")
        base_names, key_variable = "api_base= or set LITELLM_PROXY_API_BASE", "LITELLM_PROXY_API_KEY"
    else:
        name, provider = _provider_of(model, _PROVIDERS[wire])
        if provider is not _PROVIDERS[wire]:
            if _GOOGLE in (provider, _PROVIDERS[wire]):
                raise _never_translated(model, provider, _PROVIDERS[wire])
            if not translates():
                raise _not_translated(model, provider, _PROVIDERS[wire])
            upstream, program = provider.common, wire
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
    gateway = model.startswith(GATEWAY_PREFIX)
    return Route(_checked(base.strip(), base_names), key, name, upstream, gateway, program)


def _provider_of(model: str, of_wire: _Provider) -> tuple[str, _Provider]:
    """The model's name at its provider, and that provider."""
    prefix, slash, rest = model.partition("/")
    return (rest, _BY_NAME[prefix]) if slash and prefix in _BY_NAME else (model, of_wire)


def _not_translated(model: str, provider: _Provider, of_wire: _Provider) -> CapabilityUnsupported:
    return CapabilityUnsupported(
        f"model={model!r} belongs to {provider.name}, but this program speaks the wire of {of_wire.name}. To have it "
        f'translated on this machine: pip install "hostler[litellm]". Or route it through a LiteLLM gateway '
        f"(model='{GATEWAY_PREFIX}<group>'). For an upstream of the {of_wire.name} kind that has a model of this very "
        f"name, write model='{of_wire.name}/{model}'."
    )


def _never_translated(model: str, provider: _Provider, of_wire: _Provider) -> CapabilityUnsupported:
    return CapabilityUnsupported(
        f"model={model!r} belongs to {provider.name}, but this program speaks the wire of {of_wire.name}, and nothing here "
        f"translates between the two. Route it through a LiteLLM gateway (model='{GATEWAY_PREFIX}<group>'), which does. "
        f"For an upstream of the {of_wire.name} kind that has a model of this very name, write "
        f"model='{of_wire.name}/{model}'."
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
