"""`python -m tenuto` is the `tenuto` command."""

from tenuto.cli import main

main(prog_name="tenuto")
