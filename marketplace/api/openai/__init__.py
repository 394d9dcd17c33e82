"""``/v1``: what OpenAI's clients call to upload data, fine-tune and follow the jobs."""
