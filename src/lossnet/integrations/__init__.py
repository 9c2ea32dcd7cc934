"""Lossnet inside other libraries' training loops: `lossnet.integrations.hf` for Hugging Face's `Trainer`."""
