"""Sources of GPUs: NVML and what is built on it."""
