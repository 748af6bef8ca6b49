// Where the sums of products go: what linear.cpp and quantized.cpp have in common.
#pragma once

#include "kernels.h"
#include "vectors.h"

namespace octavo {

constexpr int64_t PANEL = 2 * LANES;  // outputs of a panel

// The outputs of a packed weight.
struct Outputs {
    const float* bias;  // [panels * PANEL] in the panels' order, or null
    int64_t count;      // of a gated weight: half of its rows, and a panel is LANES of gate beside the same of up
    int64_t gated;

    int64_t panels() const {
        const int64_t width = gated ? LANES : PANEL;
        return (count + width - 1) / width;
    }
};

// What becomes of the sums of one row and a panel.
template <typename T>
void finish(const Outputs& outputs, int64_t panel, int64_t row, Vec low, Vec high, const Finish<T>& to) {
    if (outputs.bias) {
        low = low + load(outputs.bias + panel * PANEL);
        high = high + load(outputs.bias + panel * PANEL + LANES);
    }
    const auto put = [&](int64_t column, Vec values) {
        const Mask mask = lanes(column, outputs.count);
        const int64_t place = row * to.stride + column;
        if (to.residual) values = values + load(to.residual + place, mask);
        if (to.wide_out) return store(to.wide_out + place, values, mask);
        store(to.out + place, values, mask);
    };
    if (outputs.gated) return put(panel * LANES, silu(low) * high);
    put(panel * PANEL, low);
    put(panel * PANEL + LANES, high);
}

}  // namespace octavo
