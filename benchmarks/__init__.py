"""What measures forerun next to others; not installed."""
