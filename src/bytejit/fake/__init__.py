"""Shape inference: tensors without data."""
