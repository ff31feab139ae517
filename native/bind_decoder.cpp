// Python's view of the decoder: the forward pass, its KV pages and its adapters.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "cores.hpp"
#include "cpu.hpp"
#include "decoder.hpp"
#include "sampling.hpp"

namespace stoker {

namespace {

// Of an adapter: place, rank, whether the elements are half floats, scale, offset of a, offset of b.
using Change = std::tuple<int32_t, int32_t, bool, float, int64_t, int64_t>;

constexpr int32_t kMaxCpus = 1024;  // what a set of them has place for

KvType kv_type_named(const std::string& name) {
    if (name == "f32") return KvType::f32;
    if (name == "f16") return KvType::f16;
    if (name == "q8") return KvType::q8;
    if (name == "q4") return KvType::q4;
    if (name == "q16") return KvType::q16;
    require(name == "i16", "kv_type must be f32, f16, q8, q4, q16 or i16");
    return KvType::i16;
}

// The decoder with the Python objects whose memory it reads.
class BoundDecoder {
public:
    BoundDecoder(const nb::dict& description, nb::handle memory, int32_t num_pages, int32_t num_window_pages,
                 int32_t num_states, int32_t max_batch_tokens, int32_t num_threads, const std::string& kv_type, const std::string& kernels,
                 SharedCores* cores, const std::vector<int32_t>& cpus, nb::handle lent, BoundDecoder* lender)
        : memory_(memory, false), lender_(lender) {
        require(num_pages > 0 && num_window_pages >= 0 && num_states >= 0 && max_batch_tokens > 0 && num_threads > 0,
                "a size is zero or negative");
        require(reinterpret_cast<uintptr_t>(memory_.data()) % 64 == 0, "the memory must begin at a multiple of 64 bytes");
        require(std::ranges::all_of(cpus, [](int32_t cpu) { return cpu >= 0 && cpu < kMaxCpus; }), "no such CPU");
        if (!lent.is_none()) {
            lent_ = std::make_unique<Bytes>(lent, false);
            require(reinterpret_cast<uintptr_t>(lent_->data()) % 64 == 0, "the memory must begin at a multiple of 64 bytes");
        }
        decoder_ = std::make_unique<Decoder>(read_description(description, memory_, lent_.get(), tables_), kernels_or_best(kernels),
                                             kv_type_named(kv_type), num_pages, num_window_pages, num_states, max_batch_tokens,
                                             num_threads, cores, cpus, lender == nullptr ? nullptr : &lender->open());
    }

    void forward(Array<const int32_t, 1> tokens, Array<const int32_t, 2> chunks, Array<const int32_t, 2> tables,
                 Array<float, 2> logits, std::optional<Array<float, 2>> hidden, std::optional<Array<float, 2>> maxima,
                 std::optional<Array<const int32_t, 2>> adapters, std::optional<Array<const float, 1>> scales,
                 std::optional<Array<const float, 2>> inputs, std::optional<Array<const int32_t, 1>> sees_to,
                 std::optional<Array<const int32_t, 2>> rotary, std::optional<Array<const float, 2>> joined,
                 std::optional<Array<const float, 2>> features, std::optional<Array<float, 2>> extracted,
                 std::optional<Array<float, 2>> logit_hidden,
                 std::optional<Array<const int32_t, 2>> window_tables) {
        Decoder& decoder = open();
        const DecoderSpec& spec = decoder.spec();
        require(chunks.shape(1) == 4, "chunks must have four columns");
        require(logits.shape(1) == size_t(spec.num_logits()), "logits must have a column for each token id");
        require(!hidden || (hidden->shape(0) == tokens.shape(0) && hidden->shape(1) == size_t(spec.given_size())),
                "hidden must have a row for each token");
        require(!logit_hidden || (logit_hidden->shape(0) == logits.shape(0) && logit_hidden->shape(1) == size_t(spec.hidden_size)),
                "logit_hidden must have a row for each of the logits");
        require(!maxima || (maxima->shape(0) == logits.shape(0) && maxima->shape(1) == size_t(num_maxima(spec.num_logits()))),
                "maxima must have a row for each of the logits, and a column for each of its blocks");
        require(adapters.has_value() == scales.has_value() &&
                    (!adapters || (adapters->shape(1) == 2 && adapters->shape(0) == scales->shape(0))),
                "adapters must have two columns, and each a scale");
        require(!inputs || inputs->shape(1) == size_t(spec.input_size()), "inputs must be as wide as the model takes them");
        require(!sees_to || sees_to->shape(0) == tokens.shape(0), "sees_to must have a number for each token");
        require(!rotary || (rotary->shape(0) == tokens.shape(0) && rotary->shape(1) == kAxes),
                "rotary must have three positions for each token");
        require(!window_tables || (window_tables->shape(0) == tables.shape(0) && window_tables->shape(1) == tables.shape(1)),
                "the page tables of windows must be as large as the others");
        require(!joined || (joined->shape(0) == tokens.shape(0) && joined->shape(1) == size_t(spec.join.hidden_size)),
                "joined must have a row for each token");
        require(!features || (features->shape(0) == tokens.shape(0) && features->shape(1) == size_t(spec.join.fuse.w.cols)),
                "features must have a row for each token");
        require(!extracted || (extracted->shape(0) == tokens.shape(0) && extracted->shape(1) == size_t(spec.extracted_size())),
                "extracted must have a row for each token");
        static_assert(sizeof(Chunk) == 4 * sizeof(int32_t) && sizeof(AdapterUse) == 2 * sizeof(int32_t));
        const Batch batch = {
            .tokens = tokens.data(),
            .num_tokens = int32_t(tokens.shape(0)),
            .chunks = reinterpret_cast<const Chunk*>(chunks.data()),
            .num_chunks = int32_t(chunks.shape(0)),
            .tables = tables.data(),
            .window_tables = window_tables ? window_tables->data() : nullptr,
            .num_slots = int32_t(tables.shape(0)),
            .max_pages = int32_t(tables.shape(1)),
            .logits = logits.data(),
            .num_rows = int32_t(logits.shape(0)),
            .hidden = hidden ? hidden->data() : nullptr,
            .logit_hidden = logit_hidden ? logit_hidden->data() : nullptr,
            .joined = joined ? joined->data() : nullptr,
            .features = features ? features->data() : nullptr,
            .extracted = extracted ? extracted->data() : nullptr,
            .maxima = maxima ? maxima->data() : nullptr,
            .uses = adapters ? reinterpret_cast<const AdapterUse*>(adapters->data()) : nullptr,
            .use_scales = scales ? scales->data() : nullptr,
            .num_uses = adapters ? int32_t(adapters->shape(0)) : 0,
            .inputs = inputs ? inputs->data() : nullptr,
            .num_inputs = inputs ? int32_t(inputs->shape(0)) : 0,
            .sees_to = sees_to ? sees_to->data() : nullptr,
            .rotary = rotary ? rotary->data() : nullptr,
        };
        nb::gil_scoped_release release;
        decoder.forward(batch);
    }

    void load_adapter(int32_t id, nb::handle memory, const std::vector<Change>& changes) {
        Decoder& decoder = open();
        auto bytes = std::make_unique<Bytes>(memory, false);
        Adapter adapter(decoder.spec().num_places());
        for (const Change& change : changes) {
            const LowRank read = change_of(decoder.spec(), *bytes, change);
            adapter[std::get<0>(change)] = read;
        }
        decoder.add_adapter(id, std::move(adapter));
        adapter_memory_[id] = std::move(bytes);
    }

    void unload_adapter(int32_t id) {
        open().remove_adapter(id);
        adapter_memory_.erase(id);
    }

    void copy_page(int32_t source, int32_t target, bool is_window) {
        kv_with(source, target, is_window).copy_page(source, target);
    }

    void export_page(int32_t page, nb::handle into, bool is_window) {
        const Bytes to(into, true);
        KvCache& kv = kv_with(page, page, is_window);
        require(to.size() == kv.page_bytes(), "there is no room for a page, or too much");
        nb::gil_scoped_release release;
        std::memcpy(to.data(), kv.page(page), kv.page_bytes());
    }

    void import_page(int32_t page, nb::handle data, int32_t first, int32_t last, bool is_window) {
        const Bytes from(data, false);
        KvCache& kv = kv_with(page, page, is_window);
        require(from.size() == kv.page_bytes(), "the data are not a page");
        require(0 <= first && first <= last && last <= kPageTokens, "no such positions in a page");
        nb::gil_scoped_release release;
        kv.import_positions(page, from.data(), first, last);
    }

    void export_state(int32_t slot, nb::handle into) {
        const Bytes to(into, true);
        States& states = states_with(slot);
        require(states.length(slot) >= 0, "the slot has no state, since a pass has not ended");
        require(to.size() == states.state_bytes(), "there is no room for a state, or too much");
        nb::gil_scoped_release release;
        states.export_state(slot, to.data());
    }

    void import_state(int32_t slot, nb::handle data, int32_t length) {
        const Bytes from(data, false);
        States& states = states_with(slot);
        require(from.size() == states.state_bytes(), "the data are not a state");
        require(length > 0, "a state has a length");
        nb::gil_scoped_release release;
        states.import_state(slot, from.data(), length);
    }

    void keep_states(const std::vector<std::pair<int32_t, int32_t>>& rows_of_slots) { open().states().keep(rows_of_slots); }

    void roll_back_state(int32_t slot) { states_with(slot).roll_back(slot); }

    void copy_state(int32_t source, int32_t target) {
        States& states = states_with(source);
        states_with(target);
        nb::gil_scoped_release release;
        states.copy(source, target);
    }

    size_t state_bytes() { return open().states().state_bytes(); }
    size_t page_bytes() { return open().kv().page_bytes(); }
    size_t window_page_bytes() { return open().window_kv().num_pages() > 0 ? open().window_kv().page_bytes() : 0; }
    std::string kernels() { return open().kernels_name(); }

    // By another thread than the one that closes.
    void touch_pages(int32_t first, int32_t last) {
        nb::gil_scoped_release release;
        const std::lock_guard lock(closing_);
        if (decoder_ != nullptr) {
            require(0 <= first && first <= last && last <= decoder_->kv().num_pages(), "no such pages");
            decoder_->kv().touch(first, last);
        }
    }

    void give_back_pages(int32_t first, int32_t last) {
        KvCache& kv = open().kv();
        require(0 <= first && first <= last && last <= kv.num_pages(), "no such pages");
        nb::gil_scoped_release release;
        kv.give_back(first, last);
    }

    void close() {
        {
            nb::gil_scoped_release release;
            const std::lock_guard lock(closing_);
            decoder_.reset();
        }
        adapter_memory_.clear();
    }

private:
    Decoder& open() {
        if (decoder_ == nullptr) {
            throw std::runtime_error("the decoder was closed");
        }
        if (lender_ != nullptr) {
            lender_->open();
        }
        return *decoder_;
    }

    KvCache& kv_with(int32_t page, int32_t other, bool is_window) {
        KvCache& kv = is_window ? open().window_kv() : open().kv();
        require(page >= 0 && page < kv.num_pages() && other >= 0 && other < kv.num_pages(), "no such page");
        return kv;
    }

    States& states_with(int32_t slot) {
        States& states = open().states();
        require(slot >= 0 && slot < states.num_slots(), "no such state");
        return states;
    }

    static LowRank change_of(const DecoderSpec& spec, const Bytes& memory, const Change& fields) {
        const auto [place, rank, is_half, scale, offset_a, offset_b] = fields;
        require(place >= 0 && place < spec.num_places(), "a change has no place");
        require(rank > 0 && rank % kRankBlock == 0 && rank < (1 << 20), "a change has a rank without kernels");
        const Matrix& w = spec.at(place).w;
        const bool is_embedding = place == DecoderSpec::kEmbedding;
        require(!is_embedding || !is_half, "a change of the embedding must be of floats");
        const size_t row_bytes = size_t(rank) * (is_half ? 2 : 4);
        const auto [inputs, outputs] = is_embedding ? std::pair(w.rows, w.cols) : std::pair(w.cols, w.rows);
        return {rank, is_half, scale, memory.part(offset_a, row_bytes * inputs),
                memory.part(offset_b, row_bytes * ((size_t(outputs) + kTile - 1) / kTile * kTile))};
    }

    Bytes memory_;
    std::unique_ptr<Bytes> lent_;
    BoundDecoder* lender_;  // kept alive by Python
    Tables tables_;
    std::map<int32_t, std::unique_ptr<Bytes>> adapter_memory_;
    std::unique_ptr<Decoder> decoder_;
    std::mutex closing_;  // never waited for with the GIL
};

}  // namespace

void bind_decoder(nb::module_& module) {
    nb::class_<BoundDecoder>(module, "Decoder")
        .def(nb::init<const nb::dict&, nb::handle, int32_t, int32_t, int32_t, int32_t, int32_t, const std::string&,
                      const std::string&, SharedCores*, const std::vector<int32_t>&, nb::handle, BoundDecoder*>(),
             nb::keep_alive<1, 11>(), nb::keep_alive<1, 14>(),
             nb::arg("description"), nb::arg("memory"), nb::kw_only(), nb::arg("num_pages"), nb::arg("num_window_pages") = 0,
             nb::arg("num_states") = 0, nb::arg("max_batch_tokens"), nb::arg("num_threads"), nb::arg("kv_type"), nb::arg("kernels") = "",
             nb::arg("cores").none() = nb::none(), nb::arg("cpus") = std::vector<int32_t>(), nb::arg("lent") = nb::none(),
             nb::arg("lender").none() = nb::none())
        .def_prop_ro("page_bytes", &BoundDecoder::page_bytes)
        .def_prop_ro("window_page_bytes", &BoundDecoder::window_page_bytes)
        .def_prop_ro("state_bytes", &BoundDecoder::state_bytes)
        .def_prop_ro("kernels", &BoundDecoder::kernels)
        .def("forward", &BoundDecoder::forward, nb::arg("tokens").noconvert(), nb::arg("chunks").noconvert(),
             nb::arg("page_tables").noconvert(), nb::arg("logits").noconvert(), nb::arg("hidden").noconvert() = nb::none(),
             nb::arg("maxima").noconvert() = nb::none(), nb::arg("adapters").noconvert() = nb::none(),
             nb::arg("scales").noconvert() = nb::none(), nb::arg("inputs").noconvert() = nb::none(),
             nb::arg("sees_to").noconvert() = nb::none(), nb::arg("rotary").noconvert() = nb::none(),
             nb::arg("joined").noconvert() = nb::none(), nb::arg("features").noconvert() = nb::none(),
             nb::arg("extracted").noconvert() = nb::none(), nb::arg("logit_hidden").noconvert() = nb::none(),
             nb::arg("window_tables").noconvert() = nb::none())
        .def("load_adapter", &BoundDecoder::load_adapter, nb::arg("id"), nb::arg("memory"), nb::arg("changes"))
        .def("unload_adapter", &BoundDecoder::unload_adapter, nb::arg("id"))
        .def("copy_page", &BoundDecoder::copy_page, nb::arg("source"), nb::arg("target"),
             nb::arg("is_window") = false)
        .def("export_page", &BoundDecoder::export_page, nb::arg("page"), nb::arg("into"),
             nb::arg("is_window") = false)
        .def("import_page", &BoundDecoder::import_page, nb::arg("page"), nb::arg("data"), nb::arg("first"), nb::arg("last"),
             nb::arg("is_window") = false)
        .def("keep_states", &BoundDecoder::keep_states, nb::arg("rows_of_slots"))
        .def("roll_back_state", &BoundDecoder::roll_back_state, nb::arg("slot"))
        .def("copy_state", &BoundDecoder::copy_state, nb::arg("source"), nb::arg("target"))
        .def("export_state", &BoundDecoder::export_state, nb::arg("slot"), nb::arg("into"))
        .def("import_state", &BoundDecoder::import_state, nb::arg("slot"), nb::arg("data"), nb::arg("length"))
        .def("touch_pages", &BoundDecoder::touch_pages, nb::arg("first"), nb::arg("last"))
        .def("give_back_pages", &BoundDecoder::give_back_pages, nb::arg("first"), nb::arg("last"))
        .def("close", &BoundDecoder::close);
}

}  // namespace stoker
