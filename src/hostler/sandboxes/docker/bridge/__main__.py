"""Entry of the bridge process; puts its own package on the path, because it runs without site-packages."""

import os
import sys

sys.path[0] = os.path.dirname(sys.path[0])  # was the folder of this file
from bridge.run import main  # type: ignore[import-not-found]  # noqa: E402

del sys.path[0]
main()
