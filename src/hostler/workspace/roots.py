"""The folders of a session by the names that the agent and the app use for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..types.errors import PathError
from ..types.sandbox import Folders
from .confined import Root, make_folder, split

VIRTUAL = "/session"  # the working directory of a program that sees the folders under these names
NAMES = (VIRTUAL, "/artifacts", "/persistent", "/skills")
# Where such a name begins and ends in a text: not inside another path, a URL or a word. ``/session`` alone is too common
# a word (of web addresses, say) to be taken for the folder.
_IN_TEXT = re.compile(
    r"(?<![\w/.~:$}-])/(?:session(?=/[\w.])|(?:artifacts|persistent|skills)(?=/|[^\w.-]|\.?$|\.\s))", re.M
)


class Names:
    """What a program that does not see the folders under their names calls them, by those names."""

    def __init__(self, mounts: Mapping[str, str]) -> None:
        self.mounts = dict(mounts)

    @classmethod
    def of(cls, inside: Folders) -> Names | None:
        """Those of a program that sees its folders so; None for one that calls them what the app does."""
        folders = (inside.workdir, inside.artifacts, inside.persistent, inside.skills)
        return None if folders == NAMES else cls(dict(zip(NAMES, folders, strict=True)))

    def real(self, path: str) -> str:
        """The program's name for a path that the app has given in full."""
        for name, folder in self.mounts.items():
            if path == name or path.startswith(name + "/"):
                return folder + path[len(name) :]
        return path

    def translated(self, text: str) -> str:
        """A text with the names of the folders in it replaced by the program's."""
        return _IN_TEXT.sub(lambda match: self.mounts[match[0]], text)


class Roots:
    """Resolves a path of the app's to a confined folder and the path in it. A relative one is below ``/session``; one
    that begins with where a folder really is, or with the program's name for it (``names``), means that folder."""

    def __init__(self, mounts: Mapping[str, str], *, make: bool = True, names: Names | None = None) -> None:
        self._mounts = dict(mounts)
        self._names = names.mounts if names is not None else {}
        self._make = make

    def resolve(self, path: str) -> tuple[Root, str]:
        """The folder (with ``make``, made when it is one of ours and missing) and ``path`` as that folder understands it.

        Raises PathError for what is in none of them."""
        name = NAMES[0]
        if isinstance(path, str):
            for virtual in NAMES:
                for spelled in (virtual, self._mounts[virtual], self._names.get(virtual, virtual)):
                    if path == spelled or path.startswith(spelled + "/"):
                        name, path = virtual, virtual + path[len(spelled) :]
                        break
        try:
            split(path, name)
        except PathError as error:
            if isinstance(path, str) and path.startswith("/") and name == NAMES[0]:
                raise PathError(f"{error} The folders of a session are {', '.join(NAMES)}.") from None
            raise
        if self._make and name != NAMES[0]:
            make_folder(self._mounts[name])
        return Root(self._mounts[name], name), path

    def virtual(self, path: str) -> str:
        """The one name that the agent, the app and the journal use for ``path``: absolute, nothing doubled."""
        root, path = self.resolve(path)
        return "/".join((root.virtual, *split(path, root.virtual)))
