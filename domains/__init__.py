"""The domains: each knows ``shared`` only, never another domain, never Prefect."""
