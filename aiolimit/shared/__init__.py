"""One limit for many processes: the counts are kept by an engine, Redis or Valkey."""
