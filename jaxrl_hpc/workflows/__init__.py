"""How acting and learning share the machine: each module has one Config and one make()."""
