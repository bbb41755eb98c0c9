"""What all media share: pixels, columns, files, and the libraries that may be missing."""
