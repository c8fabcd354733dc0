"""What every room uses: words, files, tables, progress bars, what is installed, lazy imports."""
