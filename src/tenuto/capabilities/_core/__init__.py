"""Shared by all capabilities: the client context, the journal, blobs, and lease renewal."""
