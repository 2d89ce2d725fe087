"""What multiplies a row's logits: one file per scale."""
