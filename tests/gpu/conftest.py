"""What has to be set before CUDA starts."""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # ranks on streams of one device need a queue each
