// Products of rows with a packed weight of 4- or 8-bit codes. Each group of inputs of an output has a scale and, where
// codes do not lie around their middle, a centre:
//
//     product = sum over groups of  scale * (codes less MIDDLE) . x  +  centre * (sum of x)
//
// so codes are multiplied as whole numbers, which bfloat16 holds exactly, and no weight is rounded: nearer to the true
// product than a weight that was expanded to bfloat16. Within a piece sums are in float32; what pieces give adds up in
// float32 for bfloat16, in float64 for float32, as in linear.cpp.
//
// A few rows meet the codes in registers: a decode step reads a quarter of the bytes, and little else may stand in
// between. For more rows a piece becomes numbers once, which meet all of them. Both add in the same order, so that a
// row gets the same bits in any company.

#include <array>
#include <utility>

#include "buffer.h"
#include "quantized.h"

#define INLINE __attribute__((always_inline)) inline

namespace octavo {
namespace {

constexpr int64_t ROW_BLOCK = 96;            // rows that pass a panel before the next: they stay in the core's cache
constexpr int64_t FEW_ROWS = TILE_ROWS / 3;  // whose sums, totals and codes fit into the registers
constexpr int64_t SUM_ROWS = TILE_ROWS / 2;  // whose sums alone do: each is two
constexpr int64_t PIECE = 64;                // inputs that are summed before the scale, at most; a group may have more
constexpr int64_t AHEAD = 4096;              // bytes of a panel asked for before they are used
constexpr int SECOND_CACHE = 2;              // where they are asked to: the first one is too small for so much
constexpr int64_t LINE = 64;                 // bytes that come from memory together
constexpr int64_t WORD_BYTES = Quantized::WORD_BYTES;

// ---- what the kernels read beside the codes -------------------------------------------------------------------------

// The scales of a group for the outputs of a panel, and what a weight is where its code is MIDDLE.
struct Scales {
    Vec scale[2], centre[2];
};

template <typename T>
using Operand = typename Pair<T>::Operand;

template <int BITS>
INLINE Scales scales_of(const Quantized& weight, const uint8_t* group) {
    Scales found{};
    for (int half = 0; half < 2; ++half) {
        found.scale[half] = weight.number(group, half);
        if (!weight.sums()) continue;
        const Vec shift = weight.number(group, 2 + half), middle = broadcast(MIDDLE<BITS>);
        found.centre[half] =
            weight.shift == ZEROS ? found.scale[half] * (middle - shift) : fma(middle, found.scale[half], shift);
    }
    return found;
}

// Rows of x in the order of the codes, with the sum of each group.
template <typename T>
struct Inputs {
    const T* x;
    int64_t stride;
    const float* sums;  // [rows][groups], or null
};

template <typename T>
float sum_of(const T* x, int64_t count) {
    Doubles total{};
    for (int64_t i = 0; i < count; i += LANES) total = total + wide(load(x + i, lanes(i, count)));
    return static_cast<float>(sum(total));
}

// One row: copied to `to` unless that is null, and summed to `sums` unless that is.
template <typename T>
void prepare(const Quantized& weight, const T* x, T* to, float* sums) {
    for (int64_t index = 0; index < weight.groups(); ++index) {
        const int64_t first = index * weight.group, count = weight.inputs_of(index);
        if (to) {
            for (int64_t i = 0; i < count; ++i) to[i] = x[weight.order ? weight.order[first + i] : first + i];
            std::fill(to + count, to + weight.words_of(count) * weight.codes_of_word(), T{});
        }
        if (sums) sums[index] = sum_of(to ? to : x + first, count);
        if (to) to += weight.words_of(count) * weight.codes_of_word();
    }
}

// ---- sums and totals of pieces -------------------------------------------------------------------------------------

inline Vec times(Vec scale, Vec sum, Vec total) { return fma(scale, sum, total); }
inline Doubles times(Vec scale, Vec sum, Doubles total) { return fma(wide(scale), wide(sum), total); }
inline Vec single(Vec total) { return total; }
inline Vec single(Doubles total) { return narrow(total); }

template <typename T>
struct TotalOf {
    using Type = Vec;
};
template <>
struct TotalOf<float> {
    using Type = Doubles;
};
template <typename T>
using Total = typename TotalOf<T>::Type;

// The sums of ROWS rows and a panel over a piece. Every other pair of inputs goes to another sum: a single row would
// otherwise wait for each product before it adds the next.
template <typename T, int ROWS>
struct Sums {
    Vec of[ROWS][2][2];

    INLINE Sums() {
#pragma GCC unroll 6  // all loops over rows: only then do the sums stay in registers
        for (int row = 0; row < ROWS; ++row)
            for (int half = 0; half < 2; ++half) of[row][half][0] = of[row][half][1] = zero();
    }
    INLINE void add(int parity, const Operand<T>& low, const Operand<T>& high, const T* x, int64_t stride) {
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; ++row) {
            const auto inputs = Pair<T>::inputs(x + row * stride);
            of[row][0][parity] = Pair<T>::add(of[row][0][parity], low, inputs);
            of[row][1][parity] = Pair<T>::add(of[row][1][parity], high, inputs);
        }
    }
    INLINE void put(const Scales& scales, Total<T> (*totals)[2]) const {
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; ++row)
            for (int half = 0; half < 2; ++half)
                totals[row][half] = times(scales.scale[half], of[row][half][0] + of[row][half][1], totals[row][half]);
    }
};

// Calls piece(scales, place of words, number of words, x) for the pieces of a panel in order, and end(scales, group)
// after those of each group.
template <int BITS, typename T, typename Piece, typename End>
INLINE void walk(const Quantized& weight, int64_t panel, const T* x, const Piece& piece, const End& end) {
    const uint8_t* from = weight.panels + panel * weight.panel_bytes();
    const int64_t groups = weight.groups(), header = weight.header_bytes();
    const int64_t words_of_group = weight.words_of(weight.group), words_of_all = weight.words();
    const bool sums = weight.sums();
    for (int64_t group = 0, before = 0; group < groups; ++group, before += words_of_group) {
        const Scales scales = scales_of<BITS>(weight, from);
        from += header;
        int64_t left = std::min(words_of_group, words_of_all - before);
        while (left) {
            const int64_t words = std::min(left, PIECE / CODES<BITS>);
            piece(scales, from, words, x);
            from += words * WORD_BYTES, x += words * CODES<BITS>, left -= words;
        }
        if (sums) end(scales, group);
    }
}

inline void ask_ahead(const uint8_t* from) {
#pragma GCC unroll 2
    for (int64_t byte = 0; byte < WORD_BYTES; byte += LINE) __builtin_prefetch(from + AHEAD + byte, 0, SECOND_CACHE);
}

// ---- few rows -------------------------------------------------------------------------------------------------------

// totals[row][half] = the product of a row and a panel, for ROWS rows
template <typename T, int BITS, int ROWS>
void few(const Quantized& weight, int64_t panel, const Inputs<T>& inputs, Total<T> (*totals)[2]) {
    Total<T> total[ROWS][2] = {};
    const auto piece = [&](const Scales& scales, const uint8_t* from, int64_t count, const T* x) {
        Sums<T, ROWS> sums;
        for (int64_t word = 0; word < count; ++word, from += WORD_BYTES, x += CODES<BITS>) {
            ask_ahead(from);
            Words low = words_at(from), high = words_at(from + WORD_BYTES / 2);
#pragma GCC unroll 4
            for (int pair = 0; pair < CODES<BITS> / 2; ++pair) {
                sums.add(pair % 2, Pair<T>::template codes<BITS>(low), Pair<T>::template codes<BITS>(high),
                         x + 2 * pair, inputs.stride);
                low = next<BITS>(low), high = next<BITS>(high);
            }
        }
        sums.put(scales, total);
    };
    const auto end = [&](const Scales& scales, int64_t group) {
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; ++row) {
            const Vec sum = broadcast(inputs.sums[row * weight.groups() + group]);
            for (int half = 0; half < 2; ++half) total[row][half] = times(scales.centre[half], sum, total[row][half]);
        }
    };
    walk<BITS>(weight, panel, inputs.x, piece, end);
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half) totals[row][half] = total[row][half];
}

template <typename T>
using Few = void (*)(const Quantized& weight, int64_t panel, const Inputs<T>& inputs, Total<T> (*totals)[2]);

template <typename T, int BITS, std::size_t... ROWS>
constexpr std::array<Few<T>, FEW_ROWS> few_of(std::index_sequence<ROWS...>) {
    return {few<T, BITS, static_cast<int>(ROWS) + 1>...};
}
template <typename T, int BITS>
constexpr auto FEW = few_of<T, BITS>(std::make_index_sequence<FEW_ROWS>());

// ---- many rows ------------------------------------------------------------------------------------------------------

// The codes of a piece as numbers: one pair of inputs of each output of a panel after another.
template <typename T>
struct Numbers {
    Operand<T> low, high;
};

template <typename T, int BITS>
void expand(const uint8_t* from, int64_t words, Numbers<T>* to) {
    for (int64_t word = 0; word < words; ++word, from += WORD_BYTES) {
        ask_ahead(from);
        Words low = words_at(from), high = words_at(from + WORD_BYTES / 2);
#pragma GCC unroll 4
        for (int64_t pair = 0; pair < CODES<BITS> / 2; ++pair, ++to) {
            to->low = Pair<T>::template codes<BITS>(low), to->high = Pair<T>::template codes<BITS>(high);
            low = next<BITS>(low), high = next<BITS>(high);
        }
    }
}

// totals[row] += scale * (x[row] . numbers), for ROWS rows
template <typename T, int ROWS>
void add_piece(const T* x, int64_t stride, const Numbers<T>* numbers, int64_t pairs, const Scales& scales,
               Total<T> (*totals)[2]) {
    Sums<T, ROWS> sums;
    for (int64_t pair = 0; pair < pairs; pair += 2)
#pragma GCC unroll 2
        for (int parity = 0; parity < 2; ++parity) {
            const auto& both = numbers[pair + parity];
            sums.add(parity, both.low, both.high, x + 2 * (pair + parity), stride);
        }
    sums.put(scales, totals);
}

template <typename T>
using Tile = void (*)(const T* x, int64_t stride, const Numbers<T>* numbers, int64_t pairs, const Scales& scales,
                      Total<T> (*totals)[2]);

template <typename T, std::size_t... ROWS>
constexpr std::array<Tile<T>, SUM_ROWS> tiles_of(std::index_sequence<ROWS...>) {
    return {add_piece<T, static_cast<int>(ROWS) + 1>...};
}
template <typename T>
constexpr auto TILES = tiles_of<T>(std::make_index_sequence<SUM_ROWS>());

// The same for up to ROW_BLOCK rows, in tiles of nearly the same height.
template <typename T, int BITS>
void many(const Quantized& weight, int64_t panel, const Inputs<T>& inputs, int64_t rows, Total<T> (*totals)[2]) {
    alignas(64) Numbers<T> numbers[PIECE / 2];
    const int64_t tiles = (rows + SUM_ROWS - 1) / SUM_ROWS;
    for (int64_t row = 0; row < rows; ++row) totals[row][0] = totals[row][1] = Total<T>{};
    const auto piece = [&](const Scales& scales, const uint8_t* from, int64_t words, const T* x) {
        expand<T, BITS>(from, words, numbers);
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t first = rows * tile / tiles, last = rows * (tile + 1) / tiles;
            TILES<T>[last - first - 1](x + first * inputs.stride, inputs.stride, numbers, words * CODES<BITS> / 2,
                                       scales, totals + first);
        }
    };
    const auto end = [&](const Scales& scales, int64_t group) {
        for (int64_t row = 0; row < rows; ++row) {
            const Vec sum = broadcast(inputs.sums[row * weight.groups() + group]);
            for (int half = 0; half < 2; ++half) totals[row][half] = times(scales.centre[half], sum, totals[row][half]);
        }
    };
    walk<BITS>(weight, panel, inputs.x, piece, end);
}

// ---- all of them ----------------------------------------------------------------------------------------------------

// What a thread keeps for x as it is prepared, from product to product.
template <typename T>
struct Prepared {
    T* copies;    // [rows][words * codes of a word], or null
    float* sums;  // [rows][groups], or null

    static Prepared fit(const Quantized& weight, int64_t rows) {
        static thread_local Buffer<T> copy_memory;
        static thread_local Buffer<float> sum_memory;
        return {weight.copies() ? copy_memory.fit(rows * width(weight)) : nullptr,
                weight.sums() ? sum_memory.fit(rows * weight.groups()) : nullptr};
    }
    static int64_t width(const Quantized& weight) { return weight.words() * weight.codes_of_word(); }

    void put(const Quantized& weight, const T* x, int64_t row) const {
        prepare(weight, x, copies ? copies + row * width(weight) : nullptr,
                sums ? sums + row * weight.groups() : nullptr);
    }
    Inputs<T> inputs(const Quantized& weight, const T* x, int64_t stride) const {
        return copies ? Inputs<T>{copies, width(weight), sums} : Inputs<T>{x, stride, sums};
    }
};

// One panel with up to ROW_BLOCK rows, which are those from `first` on of what is written.
template <typename T, int BITS>
void multiply(const Quantized& weight, int64_t panel, const Inputs<T>& inputs, int64_t first, int64_t rows,
              const Finish<T>& to) {
    alignas(64) Total<T> totals[ROW_BLOCK][2];
    if (rows <= FEW_ROWS)
        FEW<T, BITS>[rows - 1](weight, panel, inputs, totals);
    else
        many<T, BITS>(weight, panel, inputs, rows, totals);
    const Outputs outputs{weight.bias, weight.outputs, weight.gated};
    for (int64_t row = 0; row < rows; ++row)
        finish(outputs, panel, first + row, single(totals[row][0]), single(totals[row][1]), to);
}

// The panels of a thread with up to ROW_BLOCK rows.
template <typename T, int BITS>
void share(Team team, const Quantized& weight, const Inputs<T>& inputs, int64_t first, int64_t rows,
           const Finish<T>& to) {
    const int64_t panels = Outputs{weight.bias, weight.outputs, weight.gated}.panels();
    for (int64_t panel = team.begin(panels); panel < team.end(panels); ++panel)
        multiply<T, BITS>(weight, panel, inputs, first, rows, to);
}

// Each thread prepares a few rows for itself, which is sooner done than waiting for the others; more are shared.
template <typename T, int BITS>
void run_team(Team team, const Quantized& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to) {
    if (rows == 0) return;
    if (rows <= FEW_ROWS) {
        const auto own = Prepared<T>::fit(weight, rows);
        for (int64_t row = 0; row < rows; ++row) own.put(weight, x + row * stride, row);
        return share<T, BITS>(team, weight, own.inputs(weight, x, stride), 0, rows, to);
    }
    const bool prepares = weight.copies() || weight.sums();
    Prepared<T> shared{};
    if (prepares) {
        team.meet();  // nobody reads what was prepared for the product before
        shared = team.told_by_first([&] { return Prepared<T>::fit(weight, std::min(rows, ROW_BLOCK)); });
    }
    for (int64_t begin = 0; begin < rows; begin += ROW_BLOCK) {
        const int64_t count = std::min(ROW_BLOCK, rows - begin);
        const T* block = x + begin * stride;
        if (prepares) {
            if (begin) team.meet();  // nobody reads the block before
            for (int64_t row = team.begin(count); row < team.end(count); ++row)
                shared.put(weight, block + row * stride, row);
            team.meet();
        }
        share<T, BITS>(team, weight, shared.inputs(weight, block, stride), begin, count, to);
    }
}

template <typename T>
void run(const Quantized& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to, int threads) {
    Meeting meeting;
#pragma omp parallel num_threads(threads)
    quantized(Team::here(meeting), weight, x, stride, rows, to);
}

}  // namespace

template <typename T>
void quantized(Team team, const Quantized& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to) {
    if (weight.bits == 4) return run_team<T, 4>(team, weight, x, stride, rows, to);
    run_team<T, 8>(team, weight, x, stride, rows, to);
}

template void quantized(Team, const Quantized&, const float*, int64_t, int64_t, const Finish<float>&);
template void quantized(Team, const Quantized&, const Bf16*, int64_t, int64_t, const Finish<Bf16>&);

}  // namespace octavo

extern "C" void octavo_quantized_bfloat16(const octavo::Quantized* weight, const octavo::Bf16* x, int64_t stride,
                                          int64_t rows, const octavo::Bf16* residual, octavo::Bf16* out,
                                          float* wide_out, int threads) {
    octavo::run<octavo::Bf16>(*weight, x, stride, rows, {residual, out, wide_out, weight->outputs}, threads);
}

extern "C" void octavo_quantized_float32(const octavo::Quantized* weight, const float* x, int64_t stride, int64_t rows,
                                         const float* residual, float* out, float* wide_out, int threads) {
    octavo::run<float>(*weight, x, stride, rows, {residual, out, wide_out, weight->outputs}, threads);
}
