"""Agent programs in images: how an image gets the one that it lacks."""

from __future__ import annotations

import os

from ...types.errors import HarnessInstallFailed

_NODE = "# the base image must have Node.js 22 or later, as node:22-slim has"
_NPM = {
    "claude": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "opencode": "opencode-ai",
    "gemini": "@google/gemini-cli",
    "pi": "@earendil-works/pi-coding-agent",
}


def lacking(file: str, program: str, image: str) -> HarnessInstallFailed:
    """The error for a file of this machine that the program's command line names, and the image does not have."""
    folder = os.path.dirname(file)
    return HarnessInstallFailed(
        f"{program} is to be started with {file}, which is a file of this machine: the image {image!r} does not have it. "
        f"Mount its folder (mounts={{{folder!r}: ({folder!r}, 'ro')}}), or name a command that is in the image: "
        "options={'program': [...]}."
    )


def missing(name: str, image: str, container: str) -> HarnessInstallFailed:
    """The error for a program that the image does not have, with what to add to its Dockerfile."""
    if package := _NPM.get(name):
        lines = f"\n\n    {_NODE}\n    RUN npm install -g {package}\n"
    else:
        lines = f"\n\n    COPY {name} /usr/local/bin/{name}\n"
    return HarnessInstallFailed(
        f"The image {image!r} has no program {name!r}: it is not on the PATH in the container {container!r}. Add it to the "
        f"image's Dockerfile, build it again and remove the container:{lines}"
    )
