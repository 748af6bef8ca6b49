// All layers of a decoder in one call: what a step costs beside its kernels is paid once, not for each of them.
//
// The same kernels in the same order as model/layers.py calls them one by one, so the same numbers to the last bit.

#include "attention.h"
#include "vectors.h"

namespace octavo {

struct Weight;       // linear.cpp
struct HeadsOfStep;  // pointwise.cpp

// The weights of a layer (kernels/cpu/layers.py has the same fields).
struct Layer {
    const void *input_norm, *query_norm, *key_norm, *mlp_norm;
    const Weight *qkv, *output, *gate_up, *down;
};

// A step of all of them (kernels/cpu/layers.py has the same fields).
struct LayersStep {
    const Layer* layers;
    void* const* caches;                    // [layers][2]: keys and values
    const AttentionStep* const* attention;  // [layers], by the layer's window
    const HeadsOfStep* heads;
    int64_t count, tokens;                  // layers; tokens of the step
    int64_t hidden_width, heads_width, attended_width, gated_width;
    void* hidden;                              // [tokens][hidden_width], in and out
    void *normed, *turned, *attended, *gated;  // scratch, [tokens][hidden, heads, attended, gated width]
    float eps;
};

}  // namespace octavo

#define OCTAVO_LAYERS(TYPE, SUFFIX)                                                                                   \
    extern "C" void octavo_rms_norm_##SUFFIX(const void*, const void*, void*, int64_t, int64_t, float, int);          \
    extern "C" void octavo_linear_##SUFFIX(const octavo::Weight*, const void*, int64_t, int64_t, const void*, void*,  \
                                           float*, int);                                                              \
    extern "C" void octavo_store_heads_##SUFFIX(const octavo::HeadsOfStep*, void*, const void*, const void*, void*,   \
                                                void*, int);                                                          \
    extern "C" void octavo_attend_##SUFFIX(const octavo::AttentionStep*, const void*, int64_t, const void*,           \
                                           const void*, void*, int);                                                  \
    extern "C" void octavo_layers_##SUFFIX(const octavo::LayersStep* step, int threads) {                             \
        const octavo::LayersStep& s = *step;                                                                          \
        const auto norm = [&](const void* weight) {                                                                   \
            octavo_rms_norm_##SUFFIX(s.hidden, weight, s.normed, s.tokens, s.hidden_width, s.eps, threads);           \
        };                                                                                                            \
        const auto multiply = [&](const octavo::Weight* weight, const void* x, int64_t width, void* residual,         \
                                  void* out) {                                                                        \
            octavo_linear_##SUFFIX(weight, x, width, s.tokens, residual, out, nullptr, threads);                      \
        };                                                                                                            \
        for (int64_t index = 0; index < s.count; ++index) {                                                           \
            const octavo::Layer& layer = s.layers[index];                                                             \
            void* const* cache = s.caches + 2 * index;                                                                \
            norm(layer.input_norm);                                                                                   \
            multiply(layer.qkv, s.normed, s.hidden_width, nullptr, s.turned);                                         \
            octavo_store_heads_##SUFFIX(s.heads, s.turned, layer.query_norm, layer.key_norm, cache[0], cache[1],      \
                                        threads);                                                                     \
            octavo_attend_##SUFFIX(s.attention[index], s.turned, s.heads_width, cache[0], cache[1], s.attended,       \
                                   threads);                                                                          \
            multiply(layer.output, s.attended, s.attended_width, s.hidden, s.hidden);                                 \
            norm(layer.mlp_norm);                                                                                     \
            multiply(layer.gate_up, s.normed, s.hidden_width, nullptr, s.gated);                                      \
            multiply(layer.down, s.gated, s.gated_width, s.hidden, s.hidden);                                         \
        }                                                                                                             \
    }

OCTAVO_LAYERS(float, float32)
OCTAVO_LAYERS(octavo::Bf16, bfloat16)
