// Codes of 4 and 8 bits on their way to products: what vectors.h is for numbers, this is for words of codes.
//
// A word of 4 bytes holds codes of one output, of 8 inputs or of 4, a word of each lane's output lies side by side.
// Products take two inputs at a time, a pair, and the next pair is shifted to the place of the first: with 4 bits the
// even input of a pair is in the lower half of the word and the odd one in the upper; with 8 bits they lie in turn.
//
//   Words, words_at, next  LANES words; the ones in memory; with the next pair in the place of the first
//   code_pair<T, BITS>     the first pair of codes less MIDDLE, so that they lie around 0: whole numbers that bfloat16
//                          holds exactly
//   Pair<T>                what products with them take of x and how they add, by STEP<T> inputs at a time
//   Half, load             float16, finite
#pragma once

#include "vectors.h"

namespace octavo {

template <int BITS>
constexpr int64_t CODES = 32 / BITS;  // in a word
template <int BITS>
constexpr float MIDDLE = 1 << (BITS - 1);

struct Half {
    uint16_t bits;
};

// ---- what instructions differ in ------------------------------------------------------------------------------------

#if defined(__AVX512F__)

using Words = __m512i;

inline Words words_at(const void* from) { return _mm512_loadu_si512(from); }
template <int COUNT>
Words right(Words words) {
    return _mm512_srli_epi32(words, COUNT);
}
// (words & mask) | bits, as floats
inline Vec marked(Words words, int32_t mask, int32_t bits) {
    const __m512i both = _mm512_ternarylogic_epi32(words, _mm512_set1_epi32(mask), _mm512_set1_epi32(bits), 0xea);
    return _mm512_castsi512_ps(both);
}
inline Vec load(const Half* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

#elif defined(__AVX2__)

using Words = __m256i;

inline Words words_at(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
template <int COUNT>
Words right(Words words) {
    return _mm256_srli_epi32(words, COUNT);
}
inline Vec marked(Words words, int32_t mask, int32_t bits) {
    const __m256i some = _mm256_and_si256(words, _mm256_set1_epi32(mask));
    return _mm256_castsi256_ps(_mm256_or_si256(some, _mm256_set1_epi32(bits)));
}
inline Words halves_at(const Half* from) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
template <int COUNT>
Words left(Words words) {
    return _mm256_slli_epi32(words, COUNT);
}

#else

typedef uint32_t Words __attribute__((vector_size(16)));

inline Words words_at(const void* from) {
    Words words;
    std::memcpy(&words, from, sizeof words);
    return words;
}
template <int COUNT>
Words right(Words words) {
    return words >> COUNT;
}
inline Vec marked(Words words, int32_t mask, int32_t bits) {
    return as<Vec>((words & static_cast<uint32_t>(mask)) | static_cast<uint32_t>(bits));
}
inline Words halves_at(const Half* from) { return Words{from[0].bits, from[1].bits, from[2].bits, from[3].bits}; }
template <int COUNT>
Words left(Words words) {
    return words << COUNT;
}

#endif

#if !defined(__AVX512F__)

// The exponent of float16 begins 112 lower; a product moves it, also of numbers too small to be normal. The sign goes
// by itself.
inline Vec load(const Half* from) {
    const Words halves = halves_at(from);
    const Vec magnitude = marked(left<13>(halves), 0x7fff << 13, 0) * broadcast(0x1p112f);
    const Vec sign = marked(left<16>(halves), static_cast<int32_t>(0x80000000), 0x3f800000);  // 1 or -1
    return magnitude * sign;
}

#endif

// ---- codes as numbers -----------------------------------------------------------------------------------------------

// The code that begins at bit AT of each word. Beside a chosen exponent that bit counts 1.
template <int BITS, int AT>
Vec code_at(Words words) {
    constexpr int32_t MASK = ((1 << BITS) - 1) << AT, EXPONENT = (127 + 23 - AT) << 23;
    return marked(words, MASK, EXPONENT) - broadcast((1 << (23 - AT)) + MIDDLE<BITS>);
}

template <int BITS>
constexpr int ODD = BITS == 4 ? 16 : 8;  // bit of the second code of a pair

template <int BITS>
Words next(Words words) {
    return right<BITS == 4 ? 4 : 16>(words);
}

template <typename T>
struct Pair;

template <>
struct Pair<float> {
    struct Operand {
        Vec even, odd;
    };
    template <int BITS>
    static Operand codes(Words words) {
        return {code_at<BITS, 0>(words), code_at<BITS, ODD<BITS>>(words)};
    }
    static Operand inputs(const float* x) { return {broadcast(x[0]), broadcast(x[1])}; }
    static Vec add(Vec sum, const Operand& codes, const Operand& x) {
        return fma(codes.odd, x.odd, fma(codes.even, x.even, sum));
    }
};

#if defined(__AVX512BF16__)

// A table of sixteen numbers serves four bits of every half word at once. It is there twice: the instruction takes five
// bits, and what comes beside the four does not count.
inline __m512i nibbles(Words words) {
    const auto bits = [](int number) {  // of a whole number in bfloat16
        float value = static_cast<float>(number);
        uint32_t all;
        std::memcpy(&all, &value, sizeof all);
        return static_cast<int32_t>(all >> 16);
    };
    const auto pair = [&](int first) { return bits(first) | (bits(first + 1) << 16); };
    const __m256i sixteen =
        _mm256_setr_epi32(pair(-8), pair(-6), pair(-4), pair(-2), pair(0), pair(2), pair(4), pair(6));
    return _mm512_permutexvar_epi16(words, _mm512_broadcast_i64x4(sixteen));
}

template <>
struct Pair<Bf16> {
    using Operand = __m512bh;
    template <int BITS>
    static Operand codes(Words words) {
        if constexpr (BITS == 4) {
            return reinterpret_cast<Operand>(nibbles(words));
        } else {
            const __m512i even = _mm512_castps_si512(code_at<BITS, 0>(words));
            const __m512i odd = _mm512_castps_si512(code_at<BITS, ODD<BITS>>(words));
            return reinterpret_cast<Operand>(_mm512_or_si512(_mm512_srli_epi32(even, 16), odd));
        }
    }
    static Operand inputs(const Bf16* x) { return Dot<Bf16>::broadcast(x); }
    static Vec add(Vec sum, Operand codes, Operand x) { return Dot<Bf16>::add(sum, codes, x); }
};

#else

template <>
struct Pair<Bf16> {
    using Operand = Dot<Bf16>::Operand;
    template <int BITS>
    static Operand codes(Words words) {
        return {code_at<BITS, 0>(words), code_at<BITS, ODD<BITS>>(words)};
    }
    static Operand inputs(const Bf16* x) { return Dot<Bf16>::broadcast(x); }
    static Vec add(Vec sum, const Operand& codes, const Operand& x) { return Dot<Bf16>::add(sum, codes, x); }
};

#endif

}  // namespace octavo
