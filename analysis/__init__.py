"""From records to numbers: checkpoint time axis, matched times, efficiency, campaign summaries."""
