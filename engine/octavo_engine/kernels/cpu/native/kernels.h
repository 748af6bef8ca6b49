// The kernels of a layer, as each thread of a team calls them: all of a team make the same calls, one after the other.
// What they write together is there after the team's next meeting.
#pragma once

#include <cstdint>

#include "team.h"

namespace octavo {

// A packed weight; Python makes it once (kernels/cpu/linear.py has the same fields).
struct Weight {
    const void* panels;  // [panels][steps][PANEL], each a pair of inputs of one output, or one of float32
    const float* bias;   // [panels * PANEL] in the panels' order, or null
    int64_t inputs;      // even for bfloat16
    int64_t outputs;     // of a gated weight: half of its rows, and a panel is LANES of gate beside the same of up
    int64_t gated;
};

// What becomes of a product's sums: out = sums + residual, or silu(gate) * up.
template <typename T>
struct Finish {
    const T* residual;  // [rows][outputs], or null; may be out
    T* out;             // [rows][outputs], or null
    float* wide_out;    // the same unrounded, or null
    int64_t stride;     // numbers from row to row of all three: `outputs`, or more where others stand beside them
};

// x [rows][inputs], with `stride` numbers from row to row.
template <typename T>
void linear(Team team, const Weight& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to);

// out = x / rms(x) * weight, each [rows][width] but for the weight.
template <typename T>
void rms_norm(Team team, const T* x, const T* weight, T* out, int64_t rows, int64_t width, float eps);

// Where the heads of a step are, and where they go (kernels/cpu/pointwise.py has the same fields).
struct HeadsOfStep {
    const void *cos, *sin;  // [tokens][dim]; the sines of the first half are negative
    const int64_t* slots;   // [tokens]
    int64_t tokens, query_heads, kv_heads, dim, block_size;
    float eps;  // of the norms of query and key, where a model has them
};

// heads [tokens][query + key + value heads][dim]: queries and keys turn in place, keys and values go to the cache.
template <typename T>
void store_heads(Team team, const HeadsOfStep& step, T* heads, const T* query_norm, const T* key_norm, T* keys,
                 T* values);

}  // namespace octavo
