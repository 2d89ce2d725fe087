"""How scaled logits become weights: one file per map."""
