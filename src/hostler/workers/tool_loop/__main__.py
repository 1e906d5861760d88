"""``python -I __main__.py [a file of a library] settings.json``"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    *libraries, argument = sys.argv[1:] or [""]
    # Started by its file: neither hostler nor what it needs has to be where this Python looks for packages.
    sys.path += [str(Path(__file__).resolve().parents[3]), *(str(Path(file).parents[1]) for file in libraries)]
    from hostler.workers.tool_loop.loop import main

    main(argument)
