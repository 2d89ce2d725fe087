"""What can be done to a model?  One file for each kind of treatment, found by itself."""
