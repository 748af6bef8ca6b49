// Rows of a quantized weight, for an embedding that is looked up: exactly the numbers that its format says.

#include <algorithm>

#include "quantized.h"

namespace octavo {
namespace {

constexpr int64_t PART = 64;              // weights that are expanded before they are rounded
constexpr int64_t WORTH_A_THREAD = 4096;  // weights looked up; below that, waking the others takes longer

// The code of input `i` in a word of one output.
inline uint32_t code_in(uint32_t word, int64_t i, int64_t bits) {
    const int64_t place = bits == 4 ? i / 2 * 4 + i % 2 * 16 : i * 8;
    return word >> place & ((1u << bits) - 1);
}

// One group of one output, which is `lane` of its panel, in float32 before it is rounded: the product of a code and a
// float16, or one of GGUF's scales, is exact there.
template <typename T>
void expand_row(const Quantized& weight, const uint8_t* group, int64_t lane, int64_t count, T* out) {
    float numbers[2 * PANEL] = {}, values[PART];
    for (int64_t vector = 0; vector < (weight.sums() ? 4 : 2); ++vector)
        store(numbers + vector * LANES, weight.number(group, vector));
    const float scale = numbers[lane], shift = numbers[PANEL + lane];
    const float zero = weight.shift == ZEROS ? shift : weight.shift == MIDDLES ? float(1 << (weight.bits - 1)) : 0;
    const float offset = weight.shift == OFFSETS ? shift : 0;
    const auto* words = reinterpret_cast<const uint32_t*>(group + weight.header_bytes()) + lane;
    for (int64_t begin = 0; begin < count; begin += PART) {
        const int64_t end = std::min(begin + PART, count);
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t word = words[i / weight.codes_of_word() * PANEL];
            const auto code = static_cast<float>(code_in(word, i % weight.codes_of_word(), weight.bits));
            values[i - begin] = scale * (code - zero) + offset;
        }
        for (int64_t i = begin; i < end; i += LANES) {
            const Mask mask = lanes(i, end);
            store(out + i, load(values + i - begin, mask), mask);
        }
    }
}

template <typename T>
void look_up(const Quantized& weight, const int64_t* rows, int64_t count, T* out, int threads) {
    const int team = static_cast<int>(std::clamp<int64_t>(count * weight.inputs / WORTH_A_THREAD, 1, threads));
#pragma omp parallel for num_threads(team)
    for (int64_t at = 0; at < count; ++at) {
        const uint8_t* panel = weight.panels + rows[at] / PANEL * weight.panel_bytes();
        for (int64_t group = 0; group < weight.groups(); ++group)
            expand_row(weight, panel + group * weight.group_bytes(), rows[at] % PANEL, weight.inputs_of(group),
                       out + at * weight.inputs + group * weight.group);
    }
}

}  // namespace
}  // namespace octavo

// rows [count], of a weight that is not gated and has no order of its own; out [count][inputs].
extern "C" void octavo_quantized_rows_bfloat16(const octavo::Quantized* weight, const int64_t* rows, int64_t count,
                                               octavo::Bf16* out, int threads) {
    octavo::look_up(*weight, rows, count, out, threads);
}

extern "C" void octavo_quantized_rows_float32(const octavo::Quantized* weight, const int64_t* rows, int64_t count,
                                              float* out, int threads) {
    octavo::look_up(*weight, rows, count, out, threads);
}
