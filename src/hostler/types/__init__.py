"""Values that everybody shares: events, records, results, states, options, errors. Knows nobody else."""
