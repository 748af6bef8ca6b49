// Products of rows with a packed weight: of bfloat16, summed in float32, and of float32, summed in float64 every FOLD
// inputs, because float32 is what a user asks for who wants exact numbers: the logits of a deep model are then three
// times nearer to the true ones than with float32 sums, at a tenth of the time.
//
// A decode step reads every weight once, so what counts is that the weights stream: a panel of outputs lies in memory
// in the order in which it is read, panels of a thread one after another, and lines are asked for ahead of their use.

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "buffer.h"
#include "kernels.h"
#include "outputs.h"
#include "vectors.h"

namespace octavo {
namespace {

constexpr int64_t ROW_BLOCK = 96;     // rows that pass a panel before the next: they stay in the core's own cache
constexpr int64_t WIDE_NUMBERS = 1 << 16;  // the same of rows that were widened, in numbers
constexpr int64_t AHEAD = 4096;       // bytes of a panel that a single tile asks for before it uses them
constexpr int SECOND_CACHE = 2;       // where they are asked to: the first one is too small for so much
constexpr int64_t FOLD = 64;          // inputs of float32 that are summed in float32
constexpr int64_t LINE = 64;          // bytes that come from memory together
constexpr int64_t WORTH_A_THREAD = 4096;  // words looked up; below that, waking the others takes longer

struct Sums {
    Vec of[PRODUCT_ROWS][2];
};

template <typename T>
using Input = typename Dot<T>::Input;

// Weights to ask for while others are multiplied, and how many bytes of them at each step: at most two lines.
struct Ahead {
    const char* from;
    int64_t pace;
};

// sums[row][half] = x[row] . panel, for ROWS rows
template <typename T, int ROWS>
void add_up(const Input<T>* x, int64_t stride, const T* panel, int64_t steps, Ahead ahead, Sums& sums) {
    constexpr int64_t NUMBERS = PANEL * STEP<T>;  // of a step
    Vec sum[ROWS][2];
#pragma GCC unroll 12  // all loops over rows: only then do the sums stay in registers
    for (int row = 0; row < ROWS; ++row) sum[row][0] = sum[row][1] = zero();
    for (int64_t step = 0; step < steps; ++step, panel += NUMBERS, ahead.from += ahead.pace) {
        __builtin_prefetch(ahead.from, 0, SECOND_CACHE);
        if (NUMBERS * sizeof(T) > LINE && ahead.pace > LINE) __builtin_prefetch(ahead.from + LINE, 0, SECOND_CACHE);
#pragma GCC unroll 2
        for (int part = 0; part < Dot<T>::PARTS; ++part) {
            const auto low = Dot<T>::column(panel, part), high = Dot<T>::column(panel + NUMBERS / 2, part);
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; ++row) {
                const auto inputs = Dot<T>::input(x + row * stride + step * STEP<T>, part);
                sum[row][0] = Dot<T>::add(sum[row][0], low, inputs);
                sum[row][1] = Dot<T>::add(sum[row][1], high, inputs);
            }
        }
    }
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; ++row) sums.of[row][0] = sum[row][0], sums.of[row][1] = sum[row][1];
}

// The same in float64 from piece to piece.
template <int ROWS>
void add_up_exactly(const float* x, int64_t stride, const float* panel, int64_t inputs, Ahead ahead, Sums& sums) {
    Doubles total[ROWS][2] = {};
    for (int64_t begin = 0; begin < inputs; begin += FOLD) {
        add_up<float, ROWS>(x + begin, stride, panel + begin * PANEL, std::min(FOLD, inputs - begin),
                            {ahead.from + begin * ahead.pace, ahead.pace}, sums);
        for (int row = 0; row < ROWS; ++row)
            for (int half = 0; half < 2; ++half) total[row][half] = total[row][half] + wide(sums.of[row][half]);
    }
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half) sums.of[row][half] = narrow(total[row][half]);
}

template <typename T>
using Tile = void (*)(const Input<T>* x, int64_t stride, const T* panel, int64_t steps, Ahead ahead,
                      Sums& sums);

template <std::size_t... ROWS>
constexpr std::array<Tile<Bf16>, PRODUCT_ROWS> tiles(Bf16, std::index_sequence<ROWS...>) {
    return {add_up<Bf16, static_cast<int>(ROWS) + 1>...};
}
template <std::size_t... ROWS>
constexpr std::array<Tile<float>, PRODUCT_ROWS> tiles(float, std::index_sequence<ROWS...>) {
    return {add_up_exactly<static_cast<int>(ROWS) + 1>...};
}
template <typename T>
constexpr auto TILES = tiles(T{}, std::make_index_sequence<PRODUCT_ROWS>());

Outputs outputs_of(const Weight& weight) { return {weight.bias, weight.outputs, weight.gated}; }

// Rows as products take them: where they lie, or widened into this thread's memory.
template <typename T>
struct Rows {
    const Input<T>* first;
    int64_t stride;

    Rows(const T* x, int64_t stride_, int64_t count, int64_t inputs) {
        if constexpr (std::is_same_v<T, Input<T>>) {
            first = x, stride = stride_;
        } else {
            static thread_local Buffer<Input<T>> memory;
            Input<T>* to = memory.fit(count * inputs);
            first = to, stride = inputs;
            for (int64_t row = 0; row < count; ++row, x += stride_, to += inputs)
                for (int64_t i = 0; i < inputs; i += LANES) store(to + i, load(x + i, lanes(i, inputs)), lanes(i, inputs));
        }
    }
    // How many pass a panel before the next.
    static int64_t block(int64_t inputs) {
        if constexpr (std::is_same_v<T, Input<T>>) return ROW_BLOCK;
        return std::clamp(WIDE_NUMBERS / inputs / PRODUCT_ROWS * PRODUCT_ROWS, PRODUCT_ROWS, ROW_BLOCK);
    }
};

// What the `index`-th of `count` tiles asks for. The first reads a panel, and the others find it in a cache: so that
// memory does not rest meanwhile, all of them ask for the next panel. A single one asks for what it is about to read.
template <typename T>
Ahead ahead_of(const T* panel, int64_t steps, int64_t index, int64_t count) {
    constexpr int64_t BYTES = PANEL * STEP<T> * sizeof(T);  // of a step
    const char* from = reinterpret_cast<const char*>(panel);
    if (count == 1) return {from + AHEAD, BYTES};
    const int64_t pace = (BYTES + count - 1) / count;
    return {from + steps * (BYTES + index * pace), pace};
}

// One panel with the rows [begin, end), in tiles of nearly the same height.
template <typename T>
void multiply(const Weight& weight, int64_t panel, const Rows<T>& x, int64_t begin, int64_t end, const Finish<T>& to) {
    const int64_t steps = weight.inputs / STEP<T>, rows = end - begin, count = (rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
    const T* weights = static_cast<const T*>(weight.panels) + panel * weight.inputs * PANEL;
    Sums sums;
    for (int64_t index = 0; index < count; ++index) {
        const int64_t first = rows * index / count, last = rows * (index + 1) / count;
        TILES<T>[last - first - 1](x.first + first * x.stride, x.stride, weights, steps,
                                   ahead_of(weights, steps, index, count), sums);
        for (int64_t row = first; row < last; ++row)
            finish(outputs_of(weight), panel, begin + row, sums.of[row - first][0], sums.of[row - first][1], to);
    }
}

// Rows of the weight as they were before packing, for an embedding that is looked up in the panels of its head: a row's
// words lie a step apart.
void look_up(const Weight& weight, int64_t step_inputs, const int64_t* rows, int64_t count, uint32_t* out,
             int threads) {
    const int64_t steps = weight.inputs / step_inputs;
    const int team = static_cast<int>(std::clamp<int64_t>(count * steps / WORTH_A_THREAD, 1, threads));
#pragma omp parallel for num_threads(team)
    for (int64_t at = 0; at < count; ++at) {
        const int64_t panel = rows[at] / PANEL, lane = rows[at] % PANEL;
        const uint32_t* from = static_cast<const uint32_t*>(weight.panels) + panel * steps * PANEL + lane;
        for (int64_t step = 0; step < steps; ++step) out[at * steps + step] = from[step * PANEL];
    }
}

template <typename T>
void run(const Weight& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to, int threads) {
    Meeting meeting;
#pragma omp parallel num_threads(threads)
    linear(Team::here(meeting), weight, x, stride, rows, to);
}

}  // namespace

template <typename T>
void linear(Team team, const Weight& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to) {
    const int64_t panels = outputs_of(weight).panels(), block = Rows<T>::block(weight.inputs);
    for (int64_t begin = 0; begin < rows; begin += block) {
        const int64_t end = std::min(begin + block, rows);
        const Rows<T> of_block(x + begin * stride, stride, end - begin, weight.inputs);
        for (int64_t panel = team.begin(panels); panel < team.end(panels); ++panel)
            multiply(weight, panel, of_block, begin, end, to);
    }
}

template void linear(Team, const Weight&, const float*, int64_t, int64_t, const Finish<float>&);
template void linear(Team, const Weight&, const Bf16*, int64_t, int64_t, const Finish<Bf16>&);

}  // namespace octavo

// Half of a panel's outputs: what Python packs by.
extern "C" int octavo_lanes() { return octavo::LANES; }

extern "C" void octavo_linear_bfloat16(const octavo::Weight* weight, const octavo::Bf16* x, int64_t stride,
                                       int64_t rows, const octavo::Bf16* residual, octavo::Bf16* out, float* wide_out,
                                       int threads) {
    octavo::run<octavo::Bf16>(*weight, x, stride, rows, {residual, out, wide_out, weight->outputs}, threads);
}

extern "C" void octavo_linear_float32(const octavo::Weight* weight, const float* x, int64_t stride, int64_t rows,
                                      const float* residual, float* out, float* wide_out, int threads) {
    octavo::run<float>(*weight, x, stride, rows, {residual, out, wide_out, weight->outputs}, threads);
}

// rows [count], of a weight that is not gated; out [count][inputs].
extern "C" void octavo_rows_bfloat16(const octavo::Weight* weight, const int64_t* rows, int64_t count,
                                     octavo::Bf16* out, int threads) {
    octavo::look_up(*weight, octavo::STEP<octavo::Bf16>, rows, count, reinterpret_cast<uint32_t*>(out), threads);
}

extern "C" void octavo_rows_float32(const octavo::Weight* weight, const int64_t* rows, int64_t count, float* out,
                                    int threads) {
    octavo::look_up(*weight, octavo::STEP<float>, rows, count, reinterpret_cast<uint32_t*>(out), threads);
}
