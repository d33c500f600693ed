"""How a sharded run scales: measured on this machine, modelled, extrapolated."""
