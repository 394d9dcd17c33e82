"""SQL that Django's ORM does not send: pipelined statements, bulk writes, a cache of rows."""
