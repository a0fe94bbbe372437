"""Triton twin of the move between slots and packed nodes."""
