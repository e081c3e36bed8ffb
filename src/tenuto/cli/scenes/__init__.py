"""The scripts that `tenuto demo` writes and runs; each is an ordinary program, to be read and changed."""
