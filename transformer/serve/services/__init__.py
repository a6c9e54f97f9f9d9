"""What a server offers of a run: fields of requests, limits, and answers. Systems add theirs."""
