# Tests of tests/ops.
