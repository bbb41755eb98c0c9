"""What is done with torch, where the training code has it. Nothing in here imports torch."""
