"""`python -m tenuto` is the `tenuto` command."""

from tenuto.cli import main

main()
