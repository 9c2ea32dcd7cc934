"""Learned losses inside other libraries' training loops: Hugging Face's in `lossnet.integrations.hf`."""
