"""Other libraries on the work of `bench train`, in a Python of their own: nothing here imports jaxrl_hpc."""
