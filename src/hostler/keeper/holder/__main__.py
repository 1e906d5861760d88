"""Entry of the keeper process; puts its own package on the path, because it runs without site-packages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from holder.run import main  # type: ignore[import-not-found]  # noqa: E402

del sys.path[0]
main(sys.argv[1:])
