"""The AR engine: prompts in, prior tokens out. Everything under this package imports torch."""

import os

# A host with torch_npu but no CANN cannot import torch at all unless this is set before the first import.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
