"""An optional room: packages as Hugging Face's `kernels` loads them."""
