// A packed weight of 4- or 8-bit codes, and the product with it.
#pragma once

#include <algorithm>

#include "codes.h"
#include "kernels.h"
#include "outputs.h"

namespace octavo {

enum Shift : int64_t {
    MIDDLES,  // weight = scale * (code - MIDDLE)
    ZEROS,    // weight = scale * (code - zero)
    OFFSETS,  // weight = scale * code + offset
};

// Python makes it once (kernels/cpu/quantized.py has the same fields).
//
// A panel is its groups one after another: the scale of each output, its zero or offset if there is one, both float16
// or both float32, then words of codes. The last group may have fewer words.
struct Quantized {
    const uint8_t* panels;
    const float* bias;     // as those of a plain Weight
    const int64_t* order;  // [inputs]: the input that each code belongs to; null: as they come
    int64_t inputs, outputs, gated;
    int64_t group, bits, wide, shift;  // inputs of a group; of a code; scales are float32; a Shift

    int64_t codes_of_word() const { return 32 / bits; }
    int64_t groups() const { return (inputs + group - 1) / group; }
    int64_t inputs_of(int64_t index) const { return std::min(group, inputs - index * group); }
    int64_t words_of(int64_t count) const { return (count + codes_of_word() - 1) / codes_of_word(); }
    int64_t words() const { return (groups() - 1) * words_of(group) + words_of(inputs_of(groups() - 1)); }

    int64_t header_bytes() const { return PANEL * (wide ? sizeof(float) : sizeof(Half)) * (sums() ? 2 : 1); }
    int64_t group_bytes() const { return header_bytes() + words_of(group) * WORD_BYTES; }
    int64_t panel_bytes() const { return groups() * header_bytes() + words() * WORD_BYTES; }
    static constexpr int64_t WORD_BYTES = PANEL * sizeof(uint32_t);  // a word of each output of a panel

    // The scales of a group's outputs, in two vectors, and what follows them in two more.
    Vec number(const uint8_t* group_at, int64_t vector) const {
        if (wide) return load(reinterpret_cast<const float*>(group_at) + vector * LANES);
        return load(reinterpret_cast<const Half*>(group_at) + vector * LANES);
    }

    // Whether products need x put into the order of the codes, or filled up where their last words are.
    bool copies() const { return order || inputs % codes_of_word() || (groups() > 1 && group % codes_of_word()); }
    // Whether they need the sum of x in each group.
    bool sums() const { return shift != MIDDLES; }
};

// As `linear`. The team meets within it where there are more than a few rows.
template <typename T>
void quantized(Team team, const Quantized& weight, const T* x, int64_t stride, int64_t rows, const Finish<T>& to);

}  // namespace octavo
