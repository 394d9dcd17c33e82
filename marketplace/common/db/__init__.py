"""SQL that Django's ORM does not send: bulk updates, our own texts, notifications."""
