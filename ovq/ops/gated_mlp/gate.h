// The gate of a gated MLP: a = silu(gate) * up, of rows [gate | up] as one matrix product makes them.
// Gradients: d_gate = d_a up s (1 + gate (1 - s)) with s = sigmoid(gate), d_up = d_a gate s. Bound by memory.
#pragma once

#include <cstdint>
#include <span>

namespace ovq::kernels {

// gate_up [rows, 2 width] -> a [rows, width]. Both throw std::invalid_argument naming the argument that is wrong.
void gate_forward(std::span<const float> gate_up, int64_t width, std::span<float> a);

// d_a [rows, width] is replaced by a, which the caller needs next and does not have to keep; d_gate_up as gate_up.
void gate_backward(std::span<const float> gate_up, int64_t width, std::span<float> d_a, std::span<float> d_gate_up);

}  // namespace ovq::kernels
