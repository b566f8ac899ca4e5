"""What theatres share: the ledger's clock, the numbers they show, the pages they show them on, and how a gang finds itself."""
