// All layers of a decoder in one call, by one team of threads that meets after each kernel: waking the threads anew for
// each of a step's hundreds of kernels, and planning the same attention for each layer, costs a single stream more than
// its attention does.
//
// The same kernels in the same order as model/compute/layers.py calls them one by one, so the same numbers to the last bit.

#include <memory>

#include "attention.h"
#include "kernels.h"
#include "product.h"
#include "vectors.h"

namespace octavo {

// The weights of a layer (kernels/cpu/layers.py has the same fields).
struct Layer {
    const void *input_norm, *query_norm, *key_norm, *mlp_norm;
    Product qkv, output, gate_up, down;
};

// A step of all of them (kernels/cpu/layers.py has the same fields).
struct LayersStep {
    const Layer* layers;
    void* const* caches;                    // [layers][2]: keys and values
    const AttentionStep* const* attention;  // [layers], the same for all with the same window
    const HeadsOfStep* heads;
    int64_t count, tokens;                  // layers; tokens of the step
    const int64_t* kept;                    // [kept_rows], rising: the rows wanted of the last layer; null: all
    int64_t kept_rows;
    int64_t hidden_width, heads_width, attended_width, gated_width;
    void* hidden;                              // [tokens][hidden_width], in; out: [kept_rows]
    void *normed, *turned, *attended, *gated;  // scratch, [tokens][hidden, heads, attended, gated width]
    float eps;
};

namespace {

// The plan of each attention that some layer has.
class Plans {
    std::vector<std::unique_ptr<Plan>> plans;  // their memory is used again in every step
    std::vector<Plan*> of_layer;

public:
    void cut(const LayersStep& step, int threads) {
        size_t used = 0;
        of_layer.assign(step.count, nullptr);
        for (int64_t layer = 0; layer < step.count; ++layer) {
            const auto same = std::find(step.attention, step.attention + layer, step.attention[layer]) - step.attention;
            if (same == layer) {
                if (used == plans.size()) plans.push_back(std::make_unique<Plan>());
                of_layer[layer] = plans[used++].get();
                of_layer[layer]->cut(*step.attention[layer], threads);
            } else {
                of_layer[layer] = of_layer[same];
            }
        }
    }
    Plan& of(int64_t layer) const { return *of_layer[layer]; }
};

// Moves the kept rows to the front, in place: each is at its new place or behind it.
template <typename T>
void keep_rows(const LayersStep& step, T* rows, int64_t width) {
    for (int64_t row = 0; row < step.kept_rows; ++row) {
        if (step.kept[row] != row) std::copy_n(rows + step.kept[row] * width, width, rows + row * width);
    }
}

template <typename T>
void run_layer(Team team, const LayersStep& step, int64_t index, Plan& plan) {
    const Layer& layer = step.layers[index];
    T *hidden = static_cast<T*>(step.hidden), *normed = static_cast<T*>(step.normed);
    T *turned = static_cast<T*>(step.turned), *attended = static_cast<T*>(step.attended);
    T *gated = static_cast<T*>(step.gated);
    T *keys = static_cast<T*>(step.caches[2 * index]), *values = static_cast<T*>(step.caches[2 * index + 1]);
    int64_t rows = step.tokens;
    const auto norm = [&](const void* weight) {
        rms_norm(team, hidden, static_cast<const T*>(weight), normed, rows, step.hidden_width, step.eps);
        team.meet();
    };
    const auto multiply = [&](const Product& product, const T* x, int64_t width, const T* residual, T* out) {
        octavo::multiply<T>(team, product, x, width, rows, {residual, out, nullptr, product.outputs});
        team.meet();
    };
    norm(layer.input_norm);
    multiply(layer.qkv, normed, step.hidden_width, nullptr, turned);
    store_heads(team, *step.heads, turned, static_cast<const T*>(layer.query_norm),
                static_cast<const T*>(layer.key_norm), keys, values);
    if (team.thread == 0) plan.begin();
    team.meet();
    const bool keeps = step.kept != nullptr && index + 1 == step.count;
    if (keeps && step.kept_rows == 0) return;  // a part of a prompt: its keys and values are all that is wanted
    attend(team, *step.attention[index], plan, turned, step.heads_width, keys, values, attended);
    team.meet();
    if (keeps) {
        rows = step.kept_rows;
        if (team.thread == 0) keep_rows(step, hidden, step.hidden_width);
        if (team.thread == team.size - 1) keep_rows(step, attended, step.attended_width);
        team.meet();
    }
    multiply(layer.output, attended, step.attended_width, hidden, hidden);
    norm(layer.mlp_norm);
    multiply(layer.gate_up, normed, step.hidden_width, nullptr, gated);
    multiply(layer.down, gated, step.gated_width, hidden, hidden);
}

template <typename T>
void run_layers(const LayersStep& step, int threads) {
    static thread_local Plans plans_of_thread;
    Plans& plans = plans_of_thread;  // this thread's, for all threads
    plans.cut(step, threads);
    Meeting meeting;
#pragma omp parallel num_threads(threads)
    for (int64_t index = 0; index < step.count; ++index) run_layer<T>(Team::here(meeting), step, index, plans.of(index));
}

}  // namespace
}  // namespace octavo

extern "C" void octavo_layers_float32(const octavo::LayersStep* step, int threads) {
    octavo::run_layers<float>(*step, threads);
}

extern "C" void octavo_layers_bfloat16(const octavo::LayersStep* step, int threads) {
    octavo::run_layers<octavo::Bf16>(*step, threads);
}
