"""Units, curves and bookkeeping that all masking orders share."""
