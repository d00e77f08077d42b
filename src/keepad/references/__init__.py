"""References: good images of one product, taught once and matched on survivors only."""
