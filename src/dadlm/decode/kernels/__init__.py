"""Triton twins of what decoding does besides the network: random numbers and drawing tokens."""
