"""Would it pay: replay of logs, measured costs, benchmarks and reports."""
