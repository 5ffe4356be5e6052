"""The vocabulary of claims: what a claim is, the evidence for it, and the estimates of effects."""
