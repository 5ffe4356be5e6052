"""HeadBench: small models in which it is known what each head is, to see which measures find out."""
