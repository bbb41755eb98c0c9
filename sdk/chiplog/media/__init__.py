"""Images, tables and other media, as users log them, turned into bytes."""
