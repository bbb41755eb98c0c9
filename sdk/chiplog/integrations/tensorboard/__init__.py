"""What scripts give to the SummaryWriter of TensorBoard."""
