# Tests of tests/nn.
