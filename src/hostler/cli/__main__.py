"""``python -m hostler.cli``"""

from . import main

main()
