"""The subcommands of ``casebook``, each loaded when it is called."""
