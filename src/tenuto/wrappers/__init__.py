"""What every call passes through: the storage contract in, the same contract out."""
