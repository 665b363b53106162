#include "forerun/draft_head.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "forerun/isa.h"
#include "forerun/require.h"

namespace forerun {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

DraftHead::DraftHead(std::shared_ptr<const HeadWeights> weights, const ForwardConfig& config,
                     int top_k, const float* cos, const float* sin)
    : weights_(std::move(weights)),
      config_(config),
      top_k_(top_k),
      kernels_(*kernels_for(config.isa, config.bf16)),
      cache_({1, weights_->config().kv_heads, weights_->config().head_dim, config.page_size,
              config.pages, config.bf16}),
      pool_(config.threads, config.cpus, kernels_.thread_begin, kernels_.thread_end),
      shares_(config.threads),
      attention_(kernels_, cache_,
                 {weights_->config().heads,
                  1.0f / std::sqrt(static_cast<float>(weights_->config().head_dim)), 0.0f, 0},
                 config.threads) {
  require_value(config.max_rows > 0, "max_rows", config.max_rows, "at least 1");
  require_value(config.max_context > 0, "max_context", config.max_context, "at least 1");
  require_value(top_k > 0, "top_k", top_k, "at least 1");
  const HeadConfig& c = weights_->config();
  const std::size_t rotations = static_cast<std::size_t>(config.max_context) * (c.head_dim / 2);
  cos_.assign(cos, cos + rotations);
  sin_.assign(sin, sin + rotations);
  const std::size_t r = config.max_rows, spare = r + kernels_.spare_rows;
  ld_act_ = std::max({c.fc_input(), 2 * c.hidden_size, c.q_size()});
  ld_logits_ = round_up(c.draft_vocab, kLanes);
  x_ = HugeBuffer(r * c.hidden_size * sizeof(float), false);
  qkv_ = HugeBuffer(r * c.qkv_size() * sizeof(float), false);
  scratch_ = HugeBuffer(static_cast<std::size_t>(config.threads) *
                            std::max(c.feature_size, c.hidden_size) * sizeof(float),
                        false);
  embeddings_.assign(config.threads, std::vector<float>(c.hidden_size));
  act_ = HugeBuffer(spare * ld_act_ * kernels_.act_bytes, false);
  wide_ = HugeBuffer(spare * c.intermediate_size * kernels_.act_bytes, false);
  logits_ = HugeBuffer(r * ld_logits_ * sizeof(float), false);
}

std::vector<DraftTree> DraftHead::draft(const std::vector<HeadRows>& batch, double seconds) {
  const double end = now() + seconds;
  check(batch);
  std::vector<DraftTree> trees;
  for (const HeadRows& s : batch) trees.emplace_back(s.limits);
  outputs_.assign(batch.size(), {});
  plan_committed(batch);
  double began = now();
  run_pass(trees);
  while (true) {
    // A pass over few rows takes no longer than the one before it.
    const double last = now() - began;
    began = now();
    if (began + last > end) break;
    plan_nodes(batch, trees);
    if (rows() == 0) break;
    run_pass(trees);
  }
  return trees;
}

void DraftHead::run_pass(std::vector<DraftTree>& trees) {
  attention_.plan(sequences_, asking_);
  children_.resize(predicted_.size());
  pool_.run([&](int thread) {
    if (!features_.empty()) take_features(thread);
    join(thread);
    cache(thread);
    if (asking() == 0) return;
    if (asking() < rows()) leave_out(thread);
    attend(thread);
    predict(thread);
  });
  const std::size_t h = weights_->config().hidden_size;
  for (std::size_t i = 0; i < predicted_.size(); ++i) {
    const Predicted& p = predicted_[i];
    const float* x = x_.as<float>() + i * h;
    outputs_[p.session].insert(outputs_[p.session].end(), x, x + h);
    for (const auto& [probability, id] : children_[i]) {
      trees[p.session].add(p.node, weights_->target_id(id), probability);
    }
  }
}

void* DraftHead::act(int row) const {
  return act_.as<unsigned char>() + row * ld_act_ * kernels_.act_bytes;
}

float* DraftHead::scratch(int thread) const {
  const HeadConfig& c = weights_->config();
  return scratch_.as<float>() +
         static_cast<std::size_t>(thread) * std::max(c.feature_size, c.hidden_size);
}

// x, through the norm where there is one, as an input of a product.
void DraftHead::norm(int thread, const float* x, const std::vector<float>& weight, void* act) {
  const HeadConfig& c = weights_->config();
  float* normed = scratch(thread);
  if (!weight.empty()) kernels_.rms_norm(x, weight.data(), c.hidden_size, c.rms_norm_eps, normed);
  kernels_.to_act(weight.empty() ? x : normed, c.hidden_size, act);
}

void DraftHead::gemm(int thread, const std::uint16_t* w, int n, int k, const void* a,
                     std::size_t lda, int rows, const std::vector<float>& bias, Epilogue epilogue,
                     float* c, std::size_t ldc, void* act) {
  Gemm g{};
  g.a = a;
  g.lda = lda;
  g.rows = rows;
  g.w = w;
  g.k = k;
  g.bias = bias.empty() ? nullptr : bias.data();
  g.epilogue = epilogue;
  g.c = c;
  g.ldc = ldc;
  g.act = act;
  g.ld_act = weights_->config().intermediate_size;
  shares_.compute(thread, g, n, kernels_);
}

// Fills x of committed rows: g, or f where the embedding is joined to it.
void DraftHead::take_features(int thread) {
  const HeadConfig& c = weights_->config();
  auto* x = x_.as<float>();
  for_rows(thread, rows(), [&](int row) {
    const std::uint16_t* from = features_[row];
    float* features = c.fused ? x + static_cast<std::size_t>(row) * c.hidden_size : scratch(thread);
    std::transform(from, from + c.feature_size, features, bf16_to_float);
    if (!c.fused) kernels_.to_act(features, c.feature_size, act(row));
  });
  pool_.barrier();
  if (c.fused) return;
  gemm(thread, weights_->fc, c.hidden_size, c.feature_size, act(0), ld_act_, rows(),
       weights_->fc_bias, Epilogue::kStore, x, c.hidden_size, nullptr);
  pool_.barrier();
}

// Fills the layer's inputs, and x with the residual stream.
void DraftHead::join(int thread) {
  const HeadConfig& c = weights_->config();
  const int h = c.hidden_size;
  auto* x = x_.as<float>();
  std::vector<float>& embedding = embeddings_[thread];
  for_rows(thread, rows(), [&](int row) {
    auto* input = static_cast<unsigned char*>(act(row));
    weights_->embed(tokens_[row], embedding.data());
    norm(thread, embedding.data(), weights_->embedding_norm, input);
    float* hidden = x + static_cast<std::size_t>(row) * h;
    norm(thread, hidden, weights_->hidden_norm, input + h * kernels_.act_bytes);
    if (c.normed_residual) std::copy_n(scratch(thread), h, hidden);
  });
  pool_.barrier();
  if (!c.fused) return;
  gemm(thread, weights_->fc, h, 2 * h, act(0), ld_act_, rows(), weights_->fc_bias, Epilogue::kStore,
       x, h, nullptr);
  pool_.barrier();
  for_rows(thread, rows(), [&](int row) {
    norm(thread, x + static_cast<std::size_t>(row) * h, weights_->layer_norm, act(row));
  });
  pool_.barrier();
}

// Keys and values of all rows go into the cache, their queries stay in qkv_.
void DraftHead::cache(int thread) {
  const HeadConfig& c = weights_->config();
  const int d = c.head_dim;
  auto* qkv = qkv_.as<float>();
  gemm(thread, weights_->qkv, c.qkv_size(), c.layer_input(), act(0), ld_act_, rows(),
       weights_->qkv_bias, Epilogue::kStore, qkv, c.qkv_size(), nullptr);
  pool_.barrier();
  for_rows(thread, rows(), [&](int row) {
    float* q = qkv + static_cast<std::size_t>(row) * c.qkv_size();
    const std::size_t rotation = static_cast<std::size_t>(positions_[row]) * (d / 2);
    for (int head = 0; head < c.heads + c.kv_heads; ++head) {
      kernels_.rope(q + head * d, cos_.data() + rotation, sin_.data() + rotation, d);
    }
    for (int head = 0; head < c.kv_heads; ++head) {
      const float* key = q + c.q_size() + head * d;
      cache_.write(0, slots_[row], head, key, key + c.kv_size());
    }
  });
  pool_.barrier();
}

// Moves up the rows that predict something, over those that do not.
void DraftHead::leave_out(int thread) {
  const HeadConfig& c = weights_->config();
  const std::size_t h = c.hidden_size, ld = c.qkv_size();
  auto* x = x_.as<float>();
  auto* qkv = qkv_.as<float>();
  // In order, since a row's new place may be another one's old place.
  for (int i = 0; thread == 0 && i < asking(); ++i) {
    const std::size_t from = predicted_[i].row;
    std::copy_n(x + from * h, h, x + i * h);
    std::copy_n(qkv + from * ld, c.q_size(), qkv + i * ld);
  }
  pool_.barrier();
}

// The rest of the layer, for the rows that predict something.
void DraftHead::attend(int thread) {
  const HeadConfig& c = weights_->config();
  const int h = c.hidden_size, count = asking();
  auto* x = x_.as<float>();
  attention_.compute(0, thread, qkv_.as<float>(), c.qkv_size());
  pool_.barrier();
  attention_.merge(thread, act(0), ld_act_);
  pool_.barrier();
  gemm(thread, weights_->o, h, c.q_size(), act(0), ld_act_, count, {}, Epilogue::kAdd, x, h,
       nullptr);
  pool_.barrier();
  for_rows(thread, count, [&](int row) {
    norm(thread, x + static_cast<std::size_t>(row) * h, weights_->mlp_norm, act(row));
  });
  pool_.barrier();
  gemm(thread, weights_->gate_up, 2 * c.intermediate_size, h, act(0), ld_act_, count, {},
       Epilogue::kSiluMul, nullptr, 0, wide_.as<void>());
  pool_.barrier();
  gemm(thread, weights_->down, h, c.intermediate_size, wide_.as<void>(), c.intermediate_size, count,
       {}, Epilogue::kAdd, x, h, nullptr);
  pool_.barrier();
}

void DraftHead::predict(int thread) {
  const HeadConfig& c = weights_->config();
  const int h = c.hidden_size, count = asking();
  for_rows(thread, count, [&](int i) {
    float* x = x_.as<float>() + static_cast<std::size_t>(i) * h;
    norm(thread, x, weights_->final_norm, act(i));
    if (c.passes_norm) std::copy_n(scratch(thread), h, x);
  });
  pool_.barrier();
  gemm(thread, weights_->head, c.draft_vocab, h, act(0), ld_act_, count, {}, Epilogue::kStore,
       logits_.as<float>(), ld_logits_, nullptr);
  pool_.barrier();
  for_rows(thread, count, [&](int i) {
    float* logits = logits_.as<float>() + i * ld_logits_;
    Softmax softmax{logits, c.draft_vocab, 0, 1.0f, 0.0f, 0.0f, 0.0f};
    kernels_.softmax(softmax);
    top(logits, softmax.sum, children_[i]);
  });
}

void DraftHead::top(const float* weights, float sum,
                    std::vector<std::pair<float, int>>& best) const {
  const std::size_t count = std::min(top_k_, weights_->config().draft_vocab);
  best.clear();
  for (int id = 0; id < weights_->config().draft_vocab; ++id) {
    const float weight = weights[id];
    if (best.size() == count && weight <= best.back().first) continue;
    if (best.size() == count) best.pop_back();
    auto at = best.end();
    while (at != best.begin() && std::prev(at)->first < weight) --at;
    best.insert(at, {weight, id});
  }
  for (auto& [probability, id] : best) probability /= sum;
}

}  // namespace forerun
