"""What every room uses: tables, progress bars, what is installed, names imported on first use."""
