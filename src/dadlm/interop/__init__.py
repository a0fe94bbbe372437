"""Other people's models in, ours out: published BD3LM and MDLM folders, transformers, the hub."""
