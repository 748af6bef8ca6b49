// Products of a few rows with a packed weight: of bfloat16, summed in float32 by AVX-512's bfloat16 dot products, and of
// float32, summed in float64 every FOLD inputs, because float32 is what a user asks for who wants exact numbers: the
// logits of a deep model are then three times nearer to the true ones than with float32 sums, at a tenth of the time.
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
constexpr int64_t AHEAD = 8;          // steps, two lines each, asked for before they are used
constexpr int64_t FOLD = 64;          // inputs of float32 that are summed in float32

struct Sums {
    __m512 of[MAX_ROWS][2];
};

// What 32 lanes of 4 bytes hold of a panel, one step: a pair of inputs of bfloat16, or one of float32.
template <typename T>
constexpr int64_t STEP = sizeof(uint32_t) / sizeof(T);

inline __m512 add_product(__m512 sum, const uint32_t* weights, const Bf16* pair) {
    int32_t two;
    std::memcpy(&two, pair, sizeof two);
    const auto inputs = reinterpret_cast<__m512bh>(_mm512_set1_epi32(two));
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_load_si512(weights)), inputs);
}

inline __m512 add_product(__m512 sum, const uint32_t* weights, const float* input) {
    return _mm512_fmadd_ps(_mm512_load_ps(weights), _mm512_set1_ps(*input), sum);
}

// sums[row][half] = x[row] . panel, for ROWS rows
template <typename T, int ROWS>
void add_up(const T* x, int64_t stride, const uint32_t* panel, int64_t steps, Sums& sums) {
    __m512 sum[ROWS][2];
#pragma GCC unroll 12  // all three loops: only then do the sums stay in registers
    for (int row = 0; row < ROWS; ++row) sum[row][0] = sum[row][1] = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; ++step, panel += PANEL) {
        _mm_prefetch(panel + AHEAD * PANEL, _MM_HINT_T0);
        _mm_prefetch(panel + AHEAD * PANEL + LANES, _MM_HINT_T0);
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            const T* inputs = x + row * stride + step * STEP<T>;
            sum[row][0] = add_product(sum[row][0], panel, inputs);
            sum[row][1] = add_product(sum[row][1], panel + LANES, inputs);
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) sums.of[row][0] = sum[row][0], sums.of[row][1] = sum[row][1];
}

// The same in float64 from piece to piece.
template <int ROWS>
void add_up_exactly(const float* x, int64_t stride, const uint32_t* panel, int64_t inputs, Sums& sums) {
    __m512d total[ROWS][4];
    for (auto& row : total) std::fill(std::begin(row), std::end(row), _mm512_setzero_pd());
    for (int64_t begin = 0; begin < inputs; begin += FOLD) {
        add_up<float, ROWS>(x + begin, stride, panel + begin * PANEL, std::min(FOLD, inputs - begin), sums);
        for (int row = 0; row < ROWS; ++row)
            for (int half = 0; half < 2; ++half) {
                const __m512 part = sums.of[row][half];
                __m512d* into = &total[row][2 * half];
                into[0] = _mm512_add_pd(into[0], _mm512_cvtps_pd(_mm512_castps512_ps256(part)));
                into[1] = _mm512_add_pd(into[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(part, 1)));
            }
    }
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
            sums.of[row][half] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(total[row][2 * half])),
                                                    _mm512_cvtpd_ps(total[row][2 * half + 1]), 1);
}

template <typename T>
using Tile = void (*)(const T* x, int64_t stride, const uint32_t* panel, int64_t steps, Sums& sums);

template <std::size_t... ROWS>
constexpr std::array<Tile<Bf16>, MAX_ROWS> tiles(Bf16, std::index_sequence<ROWS...>) {
    return {add_up<Bf16, static_cast<int>(ROWS) + 1>...};
}
template <std::size_t... ROWS>
constexpr std::array<Tile<float>, MAX_ROWS> tiles(float, std::index_sequence<ROWS...>) {
    return {add_up_exactly<static_cast<int>(ROWS) + 1>...};
}
template <typename T>
constexpr auto TILES = tiles(T{}, std::make_index_sequence<MAX_ROWS>());

}  // namespace

// A packed weight; Python makes it once (kernels/cpu/linear.py has the same fields).
struct Weight {
    const uint32_t* panels;  // [panels][steps][32], each a pair of inputs of one output, or one of float32
    const float* bias;       // [panels * 32] in the panels' order, or null
    int64_t inputs;          // even for bfloat16
    int64_t outputs;         // of a gated weight: half of its rows, and a panel is 16 of gate beside the same 16 of up
    int64_t gated;
};

// What becomes of the sums: out = sums + residual, or silu(gate) * up.
template <typename T>
struct Finish {
    const T* residual;  // [rows][outputs], or null; may be out
    T* out;             // [rows][outputs], or null
    float* wide_out;    // the same unrounded, or null
};

namespace {

template <typename T>
void finish(const Weight& weight, int64_t panel, int64_t row, __m512 low, __m512 high, const Finish<T>& to) {
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
template <typename T>
void multiply(const Weight& weight, int64_t panel, const T* x, int64_t stride, int64_t begin, int64_t end,
              const Finish<T>& to) {
    const int64_t steps = weight.inputs / STEP<T>, rows = end - begin, count = (rows + MAX_ROWS - 1) / MAX_ROWS;
    const uint32_t* weights = weight.panels + panel * steps * PANEL;
    Sums sums;
    for (int64_t index = 0; index < count; ++index) {
        const int64_t first = begin + rows * index / count, last = begin + rows * (index + 1) / count;
        TILES<T>[last - first - 1](x + first * stride, stride, weights, steps, sums);
        for (int64_t row = first; row < last; ++row)
            finish(weight, panel, row, sums.of[row - first][0], sums.of[row - first][1], to);
    }
}

// x [rows][inputs], with `stride` numbers from row to row.
template <typename T>
void linear(const Weight& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to, int threads) {
    const int64_t width = weight.gated ? LANES : PANEL, panels = (weight.outputs + width - 1) / width;
#pragma omp parallel num_threads(threads)
    {
        const int64_t thread = omp_get_thread_num(), team = omp_get_num_threads();
        for (int64_t begin = 0; begin < rows; begin += ROW_BLOCK)
            for (int64_t panel = panels * thread / team; panel < panels * (thread + 1) / team; ++panel)
                multiply(weight, panel, x, stride, begin, std::min(begin + ROW_BLOCK, rows), to);
    }
}

}  // namespace
}  // namespace octavo

extern "C" void octavo_linear_bfloat16(const octavo::Weight* weight, const octavo::Bf16* x, int64_t stride,
                                       int64_t rows, const octavo::Bf16* residual, octavo::Bf16* out, float* wide_out,
                                       int threads) {
    octavo::linear<octavo::Bf16>(*weight, x, stride, rows, {residual, out, wide_out}, threads);
}

extern "C" void octavo_linear_float32(const octavo::Weight* weight, const float* x, int64_t stride, int64_t rows,
                                      const float* residual, float* out, float* wide_out, int threads) {
    octavo::linear<float>(*weight, x, stride, rows, {residual, out, wide_out}, threads);
}
