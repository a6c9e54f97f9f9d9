"""Quality of your own runs, on your own texts and recordings: figures of the pages of results in docs/."""
