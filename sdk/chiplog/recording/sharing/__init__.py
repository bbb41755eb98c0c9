"""What the whole run shares: config, files, artifacts, media, texts, environment."""
