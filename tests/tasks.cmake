# Tests of tests/tasks.
