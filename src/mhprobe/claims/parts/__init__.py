"""Parts of the verdicts on claims: the judge, the estimates, and the evidence that claims ask for."""
