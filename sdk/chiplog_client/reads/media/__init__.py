"""Media of a run: keys, values at a step, tables, histograms, texts."""
