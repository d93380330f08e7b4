"""What a run leaves behind: its folder, the registry's entry, the export, the report."""
