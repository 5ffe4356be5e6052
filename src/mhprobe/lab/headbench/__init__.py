"""HeadBench: small models whose heads have known functions, to see which measures recognise them."""
