"""Other libraries on the workloads of `bench train`, in a separate Python: nothing here imports jaxrl_hpc."""
