# Tests of tests/files.
