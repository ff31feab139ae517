// Python's view of what a decoder consists of.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "pack.hpp"

namespace stoker {

namespace {

class Description {
public:
    Description(nb::dict dict, const Bytes& memory, const Bytes* lent, Tables& tables)
        : dict_(std::move(dict)), memory_(memory), lent_(lent), tables_(tables) {}

    DecoderSpec spec() const {
        DecoderSpec out = {};
        out.vocab_size = get<int32_t>("vocab_size");
        out.hidden_size = get<int32_t>("hidden_size");
        out.norm_eps = get<float>("norm_eps");
        out.norm = chosen<NormKind>("norm", {"rms", "layer", "layer_biased", "rms_biased"});
        out.activation = chosen<Activation>("activation", {"silu", "gelu_tanh", "swiglu_clamped", "relu_squared", "gelu", "gelu_alone",
                                                           "gelu_tanh_alone", "xielu", "relu"});
        out.attention_scale = get<float>("attention_scale");
        out.attention_softcap = get<float>("attention_softcap");
        out.embedding_scale = get<float>("embedding_scale");
        out.input_scale = get<float>("input_scale");
        out.input_limit = get<float>("input_limit");
        out.deep_layers = get<int32_t>("deep_layers");
        out.logit_softcap = get<float>("logit_softcap");
        out.embedding = projection("embedding", is_lent("embedding"));
        out.head = projection("head", is_lent("head"));
        out.extracted = get<std::vector<int32_t>>("extracted_layers");
        out.output_norm = stream_norm("output_norm", out);
        if (const auto inputs = get<nb::object>("layer_inputs"); !inputs.is_none()) {
            out.layer_inputs = of(inputs).layer_inputs();
        }
        if (const auto streams = get<nb::object>("streams"); !streams.is_none()) {
            out.streams = {of(streams).projection("split"), of(streams).projection("join")};
        }
        if (const auto join = get<nb::object>("join"); !join.is_none()) {
            out.join = of(join).join(out.embedding.w.cols);
        }
        embeddings(out);
        std::tie(out.query_scales, out.num_query_scales) = table("query_scales");
        for (nb::handle rope : get<nb::list>("ropes")) {
            out.ropes.push_back(of(rope).rope());
        }
        for (nb::handle layer : get<nb::list>("layers")) {
            out.layers.push_back(of(layer).layer(out));
        }
        return out;
    }

private:
    Description of(nb::handle dict) const { return {nb::cast<nb::dict>(dict), memory_, lent_, tables_}; }

    // Whether a matrix lies in the memory of the model that is drafted for.
    bool is_lent(const char* name) const {
        const auto names = get<std::vector<std::string>>("lent");
        const bool found = std::ranges::find(names, name) != names.end();
        require(!found || lent_ != nullptr, "the memory of the model that is drafted for is not given");
        return found;
    }

    template <class T> T get(const char* key) const {
        T out{};
        require(dict_.contains(key) && nb::try_cast(dict_[key], out), "the description lacks a key, or something else is there");
        return out;
    }

    // The names of an enumeration, in its order.
    template <class T> T chosen(const char* key, std::initializer_list<const char*> names) const {
        const auto found = std::ranges::find(names, get<std::string>(key));
        require(found != names.end(), "the description has a name that is not known");
        return T(found - names.begin());
    }

    const float* vector(int64_t offset, int32_t size) const {
        require(size >= 0, "a size is negative");
        const size_t padded = (size_t(size) + 15) / 16 * 16;
        return offset < 0 ? nullptr : reinterpret_cast<const float*>(memory_.part(offset, padded * sizeof(float)));
    }

    const float* norm(const char* key, int32_t size) const { return vector(get<int64_t>(key), size); }
    const float* stream_norm(const char* key, const DecoderSpec& spec) const {
        return norm(key, is_biased(spec.norm) ? 2 * spec.hidden_size : spec.hidden_size);
    }

    // Numbers for each position, or for each head.
    std::pair<const float*, int32_t> table(const char* key) const {
        if (get<nb::object>(key).is_none()) {
            return {nullptr, 0};
        }
        tables_.scales.push_back(get<PositionScales>(key));
        return {tables_.scales.back().data(), int32_t(tables_.scales.back().shape(0))};
    }

    // What is added to embeddings.
    void embeddings(DecoderSpec& spec) const {
        require(spec.hidden_size > 0, "a size is zero or negative");
        spec.num_embedded_positions = get<int32_t>("num_embedded_positions");
        require(spec.num_embedded_positions >= 0 && spec.num_embedded_positions <= INT32_MAX / spec.hidden_size,
                "a size is negative, or a table too large");
        spec.positions = norm("positions", spec.num_embedded_positions * spec.hidden_size);
        spec.token_type = norm("token_type", spec.hidden_size);
        spec.embedding_norm = stream_norm("embedding_norm", spec);
        spec.sees_ahead = get<bool>("sees_ahead");
        spec.replaces_stream = get<bool>("replaces_stream");
        std::tie(spec.distance_slopes, spec.num_distance_slopes) = table("distance_slopes");
    }

    Projection projection(const char* key, bool is_lent = false) const {
        if (get<nb::object>(key).is_none()) {
            return {};
        }
        const auto [type, rows, cols, offset, bias, scale] =
            get<std::tuple<int32_t, int32_t, int32_t, int64_t, int64_t, int64_t>>(key);
        require(rows > 0 && cols > 0 && can_pack(type, cols), "a matrix has a type or size without kernels");
        const Bytes& memory = is_lent ? *lent_ : memory_;
        require(!is_lent || (bias < 0 && scale < 0), "a matrix that is lent has a bias, or a scale");
        return {{type, rows, cols, memory.part(offset, packed_bytes(type, rows, cols))}, vector(bias, rows),
                scale < 0 ? 1 : *vector(scale, 1)};
    }

    Rope rope() const {
        const auto table = get<RopeTable>("table");
        const auto dim = get<int32_t>("dim");
        require(table.shape(1) == 2 && 2 * int64_t(table.shape(2)) == dim && table.shape(0) < (1u << 31),
                "a table of rotations has the wrong shape");
        tables_.ropes.push_back(table);
        auto axes = get<std::vector<uint8_t>>("axes");
        require(axes.empty() || (axes.size() == size_t(dim) / 2 && std::ranges::all_of(axes, [](uint8_t a) { return a < kAxes; })),
                "the axes of a rotation are wrong");
        return {chosen<int>("pairs", {"adjacent", "halves"}) == 0, dim, int32_t(table.shape(0)), table.data(), std::move(axes)};
    }

    Join join(int32_t embedding_size) const {
        const auto size = get<int32_t>("hidden_size");
        require(size > 0, "a size is zero or negative");
        const Projection fuse = projection("fuse");
        return {
            .hidden_size = size,
            .projection = projection("projection"),
            .embedding_norm = norm("embedding_norm", embedding_size),
            .hidden_norm = norm("hidden_norm", size),
            .fuse = fuse,
            .fuse_norm = norm("fuse_norm", fuse.w.cols),
            .give = projection("give"),
            .keeps_norm = get<bool>("keeps_norm"),
            .gives_sum = get<bool>("gives_sum"),
            .first_position = get<int32_t>("first_position"),
        };
    }

    LayerInputs layer_inputs() const {
        const auto size = get<int32_t>("size");
        return {size, projection("table"), projection("projection"), norm("norm", size), get<float>("norm_eps"),
                get<float>("table_scale")};
    }

    Layer layer(const DecoderSpec& spec) const {
        const Heads heads = {get<int32_t>("num_heads"), get<int32_t>("num_kv_heads"), get<int32_t>("head_size")};
        const auto head_norms = chosen<HeadNorms>("head_norms", {"before_rope", "after_rope", "whole_row"});
        const bool are_whole = head_norms == HeadNorms::whole_row;
        const Projection output = projection("output");
        Layer out = {
            .mixer = Mixer::attention,
            .heads = heads,
            .recurrence = {},
            .feed_forward_size = get<int32_t>("feed_forward_size"),
            .attention_norm = stream_norm("attention_norm", spec),
            .query = projection("query"),
            .key = projection("key"),
            .value = projection("value"),
            .output = output,
            .latent = {},
            .mixed_gate = projection("mixed_gate"),
            .decay = {},
            .beta = {},
            .low = {},
            .wide_decay = {},
            .wide_gate = {},
            .head_norms = head_norms,
            .query_norm = norm("query_norm", are_whole ? heads.query_size() : heads.size),
            .key_norm = norm("key_norm", are_whole ? heads.kv_size() : heads.size),
            .norms_values = get<bool>("norms_values"),
            .kv_layer = get<int32_t>("kv_layer"),
            .lent_layer = get<int32_t>("lent_layer"),
            .sinks = norm("sinks", heads.num),
            .mixed_norm = norm("mixed_norm", output.w.cols),
            .post_attention_norm = stream_norm("post_attention_norm", spec),
            .laurel = {},
            .streams = {},
            .feed_forward_norm = stream_norm("feed_forward_norm", spec),
            .xielu = get<std::array<float, kXieluNumbers>>("xielu"),
            .gate = projection("gate"),
            .up = projection("up"),
            .down = projection("down"),
            .experts = experts(spec.hidden_size),
            .inner_norm = norm("inner_norm", get<int32_t>("feed_forward_size")),
            .gate_cut = get<float>("gate_cut"),
            .post_feed_forward_norm = stream_norm("post_feed_forward_norm", spec),
            .injection = {projection("inject_gate"), projection("inject_output"), stream_norm("inject_norm", spec)},
            .output_scale = get<float>("output_scale"),
            .output_norm = stream_norm("output_norm", spec),
            .is_parallel = get<bool>("is_parallel"),
            .is_beside = get<bool>("is_beside"),
            .rope = get<int32_t>("rope"),
            .window = get<int32_t>("window"),
            .is_chunked = get<bool>("is_chunked"),
            .scales_queries = get<bool>("scales_queries"),
        };
        if (const auto latent = get<nb::object>("latent"); !latent.is_none()) {
            out.latent = of(latent).latent(out.query.w.rows);
        }
        if (const auto streams = get<nb::object>("streams"); !streams.is_none()) {
            of(streams).use_streams(out, spec.hidden_size);
        }
        if (const auto recurrence = get<nb::object>("recurrence"); !recurrence.is_none()) {
            of(recurrence).recur(out);
        } else if (heads.num == 0) {
            out.mixer = out.query.w.rows > 0 ? Mixer::linear : Mixer::none;
        }
        return out;
    }

    void use_streams(Layer& layer, int32_t hidden_size) const {
        constexpr int32_t n = Streams::kCount;
        require(hidden_size < (1 << 28), "a row of all streams is too large");
        layer.laurel = {projection("narrow"), projection("wide"), norm("norm", hidden_size)};
        layer.streams = {norm("router_norm", hidden_size), norm("router", n * hidden_size), norm("predict", n * n * n),
                         norm("correct", n * n), norm("scale", hidden_size)};
    }

    Latent latent(int32_t query_rows) const {
        const auto size = get<int32_t>("size");
        return {
            .size = size,
            .plain = get<int32_t>("plain"),
            .rotated = get<int32_t>("rotated"),
            .value = get<int32_t>("value"),
            .narrow = projection("narrow"),
            .wide = projection("wide"),
            .out = projection("out"),
            .query_norm = norm("query_norm", query_rows),
            .norm = norm("norm", size),
        };
    }

    void recur(Layer& layer) const {
        layer.mixer = Mixer(int32_t(Mixer::short_conv) + chosen<int32_t>("mixer", {"short_conv", "delta_net", "mamba2", "kda", "mamba"}));
        layer.decay = projection("decay");
        layer.beta = projection("beta");
        layer.low = projection("low");
        layer.wide_decay = projection("wide_decay");
        layer.wide_gate = projection("wide_gate");
        const auto taps = get<int32_t>("taps"), num_heads = get<int32_t>("num_heads"), norm_size = get<int32_t>("norm_size");
        require(taps > 0 && taps <= kMaxTaps, "a convolution has no weights, or too many");
        const int32_t channels = layer.num_channels();
        const auto key_size = get<int32_t>("key_size");
        require(int64_t(num_heads) * key_size <= (1 << 24) && num_heads >= 0 && key_size >= 0, "a state is too large");
        const int32_t keys = num_heads * key_size;
        require(channels % 16 == 0, "the channels of a convolution are no multiple of 16");
        layer.recurrence = {
            .taps = taps,
            .convolution = norm("convolution", taps * channels),
            .convolution_bias = norm("convolution_bias", channels),
            .num_heads = num_heads,
            .num_key_heads = get<int32_t>("num_key_heads"),
            .key_size = key_size,
            .value_size = get<int32_t>("value_size"),
            .are_interleaved = get<bool>("are_interleaved"),
            .step_bias = norm("step_bias", layer.mixer == Mixer::kda ? keys : num_heads),
            .decay_rate = norm("decay_rate", layer.mixer == Mixer::mamba ? keys : num_heads),
            .skip = norm("skip", num_heads),
            .norm = norm("norm", layer.mixer == Mixer::mamba2 ? layer.value.w.rows : norm_size),
            .norm_size = norm_size,
            .norm_eps = get<float>("norm_eps"),
            .low_norm = norm("low_norm", layer.wide_decay.w.cols),
            .key_norm = norm("key_norm", key_size),
            .query_norm = norm("query_norm", key_size),
        };
    }

    Experts experts(int32_t hidden_size) const {
        const auto described = get<nb::object>("experts");
        return described.is_none() ? Experts{} : of(described).all_experts(hidden_size);
    }

    Experts all_experts(int32_t hidden_size) const {
        const auto count = get<int32_t>("count");
        return {
            .count = count,
            .used = get<int32_t>("used"),
            .size = get<int32_t>("size"),
            .num_groups = get<int32_t>("num_groups"),
            .used_groups = get<int32_t>("used_groups"),
            .routing = chosen<Routing>("routing", {"softmax", "sigmoid", "softmax_of_chosen", "sigmoid_of_chosen"}),
            .is_normalised = get<bool>("is_normalised"),
            .scale = get<float>("scale"),
            .weighs_input = get<bool>("weighs_input"),
            .is_ahead = get<bool>("is_ahead"),
            .router = projection("router"),
            .selection_bias = vector(get<int64_t>("selection_bias"), count),
            .gate = projection("gate"),
            .up = projection("up"),
            .down = projection("down"),
            .shared_gate = projection("shared_gate"),
            .router_norm = norm("router_norm", hidden_size),
            .norm = norm("norm", hidden_size),
            .block_norm = norm("block_norm", hidden_size),
            .post_norm = norm("post_norm", hidden_size),
            .output_scales = norm("output_scales", count),
        };
    }

    nb::dict dict_;
    const Bytes& memory_;
    const Bytes* lent_;
    Tables& tables_;
};

}  // namespace

DecoderSpec read_description(const nb::dict& description, const Bytes& memory, const Bytes* lent, Tables& tables) {
    return Description(description, memory, lent, tables).spec();
}

}  // namespace stoker
