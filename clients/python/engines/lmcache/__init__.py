"""LMCache on a rank."""
