"""Lightning callbacks: what watches and steers a run without the classifier knowing."""
