"""ThunderSyncRL: gradient streaming with exactly the synchronous update (arXiv 2610.05935)."""
