"""What is true of the quantities of single papers and articles?  Closed forms and bounds, with proofs.

| module | answers |
|---|---|
| separability | how many selected tokens can be told from the others? |
| distance | how far are the selected tokens from the rest? |
| finite_steps | how far do the weights move for a step of any size in the logits? |
| normalisers | how much do the weights of any normaliser move when the logits move? |
| capacity | how much information is there, and how many heads does it take? |

As in ``undilute.theory``, everything is float64, takes torch tensors, NumPy arrays or lists, and many rows at once.
"""
