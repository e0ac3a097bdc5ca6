"""Entry points. No logic: configuration in, one call into the package, results named."""
