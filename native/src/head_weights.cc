#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "forerun/draft_head.h"
#include "forerun/require.h"

namespace forerun {

HeadWeights::HeadWeights(const HeadConfig& c, std::vector<std::int32_t> draft_ids)
    : config_(c), draft_ids_(std::move(draft_ids)) {
  require_multiple("feature_size", c.feature_size);
  require_multiple("hidden_size", c.hidden_size);
  require_multiple("intermediate_size", c.intermediate_size);
  require_multiple("head_dim", c.head_dim);
  require_value(c.kv_heads > 0 && c.heads > 0 && c.heads % c.kv_heads == 0, "heads", c.heads,
                "a multiple of kv_heads, ", c.kv_heads);
  require(c.vocab_rows > 0 && c.draft_vocab > 0, "a vocabulary is empty");
  require(static_cast<int>(draft_ids_.size()) == c.draft_vocab, "draft_ids has ", draft_ids_.size(),
          " entries; it must have ", c.draft_vocab);
  for (const std::int32_t id : draft_ids_) {
    require(id >= 0 && id < c.vocab_rows, "a draft id stands for token ", id, "; tokens are 0 to ",
            c.vocab_rows - 1);
  }
  require(!c.fused || c.feature_size == c.hidden_size, "feature_size is ", c.feature_size,
          "; where they are joined with the embedding it must be hidden_size, ", c.hidden_size);
  require(std::set<std::int32_t>(draft_ids_.begin(), draft_ids_.end()).size() == draft_ids_.size(),
          "two draft ids stand for one token");

  const int h = c.hidden_size, m = c.intermediate_size;
  const auto size = [](int n, int k) { return static_cast<std::size_t>(round_up(n, kLanes)) * k; };
  const std::size_t sizes[] = {size(h, c.fc_input()),
                               size(c.qkv_size(), c.layer_input()),
                               size(h, c.q_size()),
                               size(2 * m, h),
                               size(h, m),
                               size(c.draft_vocab, h),
                               size(c.vocab_rows, h)};
  std::size_t total = 0;
  for (const std::size_t s : sizes) total += s;
  arena_ = HugeBuffer(total * sizeof(std::uint16_t));
  // In the order of their use; the embedding, of which single rows are read, at the end.
  auto* next = arena_.as<std::uint16_t>();
  std::uint16_t** const parts[] = {&fc, &qkv, &o, &gate_up, &down, &head, &embedding_};
  for (int i = 0; i < 7; ++i) {
    *parts[i] = next;
    next += sizes[i];
  }
  const int k_block = c.q_size() / kLanes, v_block = k_block + c.kv_size() / kLanes;
  matrices_ = {{"fc", {fc, h, c.fc_input()}},
               {"q", {qkv, c.q_size(), c.layer_input()}},
               {"k", {qkv, c.kv_size(), c.layer_input(), k_block}},
               {"v", {qkv, c.kv_size(), c.layer_input(), v_block}},
               {"o", {o, h, c.q_size()}},
               {"gate", {gate_up, m, h, 0, 2}},
               {"up", {gate_up, m, h, 1, 2}},
               {"down", {down, h, m}},
               {"head", {head, c.draft_vocab, h}},
               {"embedding", {embedding_, c.vocab_rows, h, 0, 0}}};
}

void HeadWeights::load_rows(const std::string& name, int first_row, const std::uint16_t* values,
                            int rows, int columns) {
  const auto matrix = std::find_if(matrices_.begin(), matrices_.end(),
                                   [&](const Matrix& m) { return m.name == name; });
  require(matrix != matrices_.end(), "matrix '", name, "' is unknown");
  matrix->place.check(name, first_row, rows, columns);
  matrix->loaded += rows;
  matrix->place.store(first_row, values, rows);
}

void HeadWeights::load_vector(const std::string& name, const std::uint16_t* values, int size) {
  // Where each begins in what holds it, and how large both are.
  struct Place {
    std::vector<float>* holder;
    int first, size, all;
  };
  const int h = config_.hidden_size, q = config_.q_size(), kv = config_.kv_size(), all = q + 2 * kv;
  const std::map<std::string, Place> places = {{"embedding_norm", {&embedding_norm, 0, h, h}},
                                               {"hidden_norm", {&hidden_norm, 0, h, h}},
                                               {"layer_norm", {&layer_norm, 0, h, h}},
                                               {"mlp_norm", {&mlp_norm, 0, h, h}},
                                               {"final_norm", {&final_norm, 0, h, h}},
                                               {"fc_bias", {&fc_bias, 0, h, h}},
                                               {"q_bias", {&qkv_bias, 0, q, all}},
                                               {"k_bias", {&qkv_bias, q, kv, all}},
                                               {"v_bias", {&qkv_bias, q + kv, kv, all}}};
  const auto found = places.find(name);
  require(found != places.end(), "vector '", name, "' is unknown");
  const Place& place = found->second;
  require(size == place.size, "vector '", name, "' has ", size, " elements; it must have ",
          place.size);
  place.holder->resize(place.all);
  std::transform(values, values + size, place.holder->begin() + place.first, bf16_to_float);
}

void HeadWeights::check_complete() const {
  for (const Matrix& m : matrices_) {
    require(m.loaded == m.place.rows, "matrix '", m.name, "' has ", m.place.rows, " rows, but ",
            m.loaded, " were stored; load each once");
  }
  require(!mlp_norm.empty(), "vector 'mlp_norm' was not stored");
  require(!config_.normed_residual || (!config_.fused && !hidden_norm.empty()),
          "a normed residual needs 'hidden_norm', and a layer that is not fused");
  require(!config_.passes_norm || !final_norm.empty(), "vector 'final_norm' was not stored");
}

void HeadWeights::embed(int token, float* out) const {
  const std::uint16_t* row = embedding_ + static_cast<std::size_t>(token) * config_.hidden_size;
  std::transform(row, row + config_.hidden_size, out, bf16_to_float);
}

}  // namespace forerun
