"""What all integrations share."""
