"""The scripts that `tenuto demo` writes and runs. Each is an ordinary program to read and change."""
