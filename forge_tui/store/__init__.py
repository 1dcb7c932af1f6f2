"""Files: every path, safe writes, project.toml, the journal, tensors and the lock. Knows no engine; torch only in `tensors`."""
