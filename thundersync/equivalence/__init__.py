"""The same logical batches under every schedule, release and precision, compared (Appendix G)."""
