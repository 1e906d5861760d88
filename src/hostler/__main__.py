"""``python -m hostler``"""

from .cli import main

main()
