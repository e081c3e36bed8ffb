"""What agents need, one noun a file, written once on the storage contract."""
