// Products of a few rows of bfloat16 with a packed weight, summed in float32 by AVX-512's bfloat16 dot products.
//
// A decode step reads every weight once, so what counts is that the weights stream: a panel of 32 outputs lies in memory
// in the order in which it is read, panels of a thread one after another, and lines are asked for ahead of their use.

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "vectors.h"

namespace octavo {
namespace {

constexpr int64_t PANEL = 2 * LANES;  // outputs of a panel; a pair of inputs of all of them is two cache lines
constexpr int64_t MAX_ROWS = 12;      // rows of a register tile: 24 sums, two weights, the broadcast pair
constexpr int64_t ROW_BLOCK = 96;     // rows that pass a panel before the next: they stay in the core's own cache
constexpr int64_t AHEAD = 8;          // pairs of inputs, two lines each, asked for before they are used

struct Sums {
    __m512 of[MAX_ROWS][2];
};

using Tile = void (*)(const Bf16* x, int64_t stride, const uint32_t* panel, int64_t pairs, Sums& sums);

// sums[row][half] = x[row] . panel, for ROWS rows
template <int ROWS>
void tile(const Bf16* x, int64_t stride, const uint32_t* panel, int64_t pairs, Sums& sums) {
    __m512 sum[ROWS][2];
#pragma GCC unroll 12  // all three loops: only then do the sums stay in registers
    for (int row = 0; row < ROWS; ++row) sum[row][0] = sum[row][1] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; ++pair, panel += PANEL) {
        _mm_prefetch(panel + AHEAD * PANEL, _MM_HINT_T0);
        _mm_prefetch(panel + AHEAD * PANEL + LANES, _MM_HINT_T0);
        const auto low = reinterpret_cast<__m512bh>(_mm512_load_si512(panel));
        const auto high = reinterpret_cast<__m512bh>(_mm512_load_si512(panel + LANES));
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            int32_t two;
            std::memcpy(&two, x + row * stride + 2 * pair, sizeof two);
            const auto inputs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
            sum[row][0] = _mm512_dpbf16_ps(sum[row][0], low, inputs);
            sum[row][1] = _mm512_dpbf16_ps(sum[row][1], high, inputs);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) sums.of[row][0] = sum[row][0], sums.of[row][1] = sum[row][1];
}

template <std::size_t... ROWS>
constexpr std::array<Tile, MAX_ROWS> tiles(std::index_sequence<ROWS...>) {
    return {tile<static_cast<int>(ROWS) + 1>...};
}
constexpr auto TILES = tiles(std::make_index_sequence<MAX_ROWS>());

}  // namespace

// A packed weight; Python makes it once (kernels/cpu/linear.py has the same fields).
struct Weight {
    const uint32_t* panels;  // [panels][inputs / 2][32], each a pair of inputs of one output
    const float* bias;       // [panels * 32] in the panels' order, or null
    int64_t inputs;          // even
    int64_t outputs;         // of a gated weight: half of its rows, and a panel is 16 of gate beside the same 16 of up
    int64_t gated;
};

// What becomes of the sums: out = sums + residual, or silu(gate) * up.
struct Finish {
    const Bf16* residual;  // [rows][outputs], or null; may be out
    Bf16* out;             // [rows][outputs], or null
    float* wide_out;       // the same unrounded, or null
};

namespace {

void finish(const Weight& weight, int64_t panel, int64_t row, __m512 low, __m512 high, const Finish& to) {
    if (weight.bias) {
        low = _mm512_add_ps(low, load(weight.bias + panel * PANEL));
        high = _mm512_add_ps(high, load(weight.bias + panel * PANEL + LANES));
    }
    const auto put = [&](int64_t column, __m512 values) {
        const __mmask16 mask = lanes(column, weight.outputs);
        const int64_t place = row * weight.outputs + column;
        if (to.residual) values = _mm512_add_ps(values, load(to.residual + place, mask));
        if (to.wide_out) return store(to.wide_out + place, values, mask);
        store(to.out + place, values, mask);
    };
    if (weight.gated) return put(panel * LANES, _mm512_mul_ps(silu(low), high));
    put(panel * PANEL, low);
    put(panel * PANEL + LANES, high);
}

// One panel with up to ROW_BLOCK rows, in tiles of nearly the same height.
void multiply(const Weight& weight, int64_t panel, const Bf16* x, int64_t stride, int64_t begin, int64_t end,
              const Finish& to) {
    const int64_t pairs = weight.inputs / 2, rows = end - begin, count = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const uint32_t* weights = weight.panels + panel * pairs * PANEL;
    Sums sums;
    for (int64_t index = 0; index < count; ++index) {
        const int64_t first = begin + rows * index / count, last = begin + rows * (index + 1) / count;
        TILES[last - first - 1](x + first * stride, stride, weights, pairs, sums);
        for (int64_t row = first; row < last; ++row)
            finish(weight, panel, row, sums.of[row - first][0], sums.of[row - first][1], to);
    }
}

}  // namespace
}  // namespace octavo

// x [rows][inputs], with `stride` numbers from row to row.
extern "C" void octavo_linear(const octavo::Weight* weight, const octavo::Bf16* x, int64_t stride, int64_t rows,
                              const octavo::Bf16* residual, octavo::Bf16* out, float* wide_out, int threads) {
    using namespace octavo;
    const int64_t width = weight->gated ? LANES : PANEL, panels = (weight->outputs + width - 1) / width;
    const Finish to{residual, out, wide_out};
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        for (int64_t begin = 0; begin < rows; begin += ROW_BLOCK)
            for (int64_t panel = panels * thread / team; panel < panels * (thread + 1) / team; ++panel)
                multiply(*weight, panel, x, stride, begin, std::min(begin + ROW_BLOCK, rows), to);
    }
}
