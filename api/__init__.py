"""The HTTP API. Never loads torch: it needs Redis, object storage and the checkpoint's tokenizer file."""
