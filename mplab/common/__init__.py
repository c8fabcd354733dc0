"""What every room uses: words, tables, progress bars, what is installed, lazy imports."""
