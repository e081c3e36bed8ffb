"""Encryption for tests: the options are named by a text such as "names,users"."""

from tenuto.wrappers.encrypt import Encryption

KEY = b"0123456789abcdef" * 2


def encryption_of(options: str) -> Encryption:
    return Encryption(KEY, hash_names="names" in options, user_keys="users" in options)
