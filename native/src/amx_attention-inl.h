// Attention on tiles: scores and products with values, both in bfloat16.
//
// A unit of cached keys is operand B as it lies, its lanes being tokens. Values
// have tokens for their depth, and a unit is half of a tile, so 32 positions are
// copied into one, wherever they lie: a step of the product always covers the
// positions from one multiple of 32 to the next. Positions that a row does not
// see have the weight zero and the value zero, so all that a row gets follows
// from the positions that it sees.
namespace forerun {
namespace amx {

inline constexpr int kDepth = 256;    // steps of one product
inline constexpr int kSlabRows = 64;  // rows for which values are copied once

// Rounds floats of A to bfloat16, exactly those that exist; zeros up to `width`.
// One instruction rounds them all, the last ones too: VCVTNEPS2BF16 takes
// denormals for zero, as do the products.
inline void round_rows(const float* from, std::size_t ld, int rows, int columns, int width,
                       std::uint16_t* to) {
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < width; i += kLanes) {
      const int left = std::clamp(columns - i, 0, kLanes);
      const auto mask = static_cast<__mmask16>((1u << left) - 1);
      const __m256bh x = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from + r * ld + i));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r * kDepth + i),
                          reinterpret_cast<__m256i>(x));
    }
  }
  see_memory(to);
}

// c[rows, 16 or 32] (+)= a * blocks for any number of rows. A tile that rows do
// not fill is stored elsewhere first: behind them lies what others wrote.
inline void product(const std::uint16_t* a, int rows, int k, const std::uint16_t* b0,
                    const std::uint16_t* b1, bool two, float* c, std::size_t ldc, bool accumulate) {
  constexpr std::size_t ldy = 2 * kLanes;
  alignas(64) float y[kPassRows * ldy];
  const int blocks = two ? 2 : 1;
  for (int first = 0; first < rows; first += kPassRows) {
    const int count = std::min(kPassRows, rows - first);
    TileRows t{a + first * kDepth, kDepth, k, c + first * ldc, ldc};
    if (count % kTileRows == 0) {
      tiles(count, two, t, b0, b1, accumulate, false);
      continue;
    }
    const auto copy = [&](const float* from, std::size_t ld_from, float* to, std::size_t ld_to) {
      for (int r = 0; r < count; ++r) {
        for (int n = 0; n < blocks * kLanes; n += kLanes) {
          _mm512_storeu_ps(to + r * ld_to + n, _mm512_loadu_ps(from + r * ld_from + n));
        }
      }
      see_memory(to);
    };
    if (accumulate) copy(t.c, ldc, y, ldy);
    t.c = y;
    t.ldc = ldy;
    tiles(count, two, t, b0, b1, accumulate, false);
    see_memory(y);
    copy(y, ldy, c + first * ldc, ldc);
  }
}

void tile_panel(const Panel& p) {
  alignas(64) std::uint16_t a[kSlabRows * kDepth];
  const auto* blocks = reinterpret_cast<const std::uint16_t* const*>(p.blocks);
  for (int first = 0; first < p.rows; first += kSlabRows) {
    const int rows = std::min(kSlabRows, p.rows - first);
    for (int from = 0; from < p.k; from += kDepth) {
      const int k = std::min(kDepth, p.k - from);
      const std::size_t at = static_cast<std::size_t>(from) * kLanes;
      round_rows(p.a + first * p.lda + from, p.lda, rows, k, round_up(k, kLanes), a);
      for (int n = 0; n < p.num_blocks; n += 2) {
        const bool two = n + 1 < p.num_blocks;
        product(a, rows, k, blocks[n] + at, two ? blocks[n + 1] + at : nullptr, two,
                p.c + first * p.ldc + n * kLanes, p.ldc, from > 0);
      }
    }
  }
}

// A token's values of one block as the even or the odd step of a pair; the other step is zero.
inline __m512i values_of(const ValueRows& v, int key, int block, bool odd) {
  const auto* values = static_cast<const std::uint16_t*>(v.units[key]) +
                       static_cast<std::size_t>(block) * kLanes * kLanes;
  const int lane = v.lanes[key];
  const __m512i pair = _mm512_loadu_si512(values + bf16_block_index(0, lane & ~1));
  if ((lane & 1) == 0) {
    return odd ? _mm512_slli_epi32(pair, 16) : _mm512_maskz_mov_epi16(0x55555555u, pair);
  }
  return odd ? _mm512_maskz_mov_epi16(0xaaaaaaaau, pair) : _mm512_srli_epi32(pair, 16);
}

// Copies block `block` of the values of keys [from, from + keys) into one block
// whose depth is those keys, filled up with zeros to `depth`.
inline void gather(const ValueRows& v, int from, int keys, int depth, int block,
                   std::uint16_t* to) {
  for (int i = 0; i < depth; i += 2) {
    __m512i pair = _mm512_setzero_si512();
    if (i < keys) pair = values_of(v, from + i, block, false);
    if (i + 1 < keys) pair = _mm512_or_si512(pair, values_of(v, from + i + 1, block, true));
    _mm512_store_si512(to + static_cast<std::size_t>(i) * kLanes, pair);
  }
  see_memory(to);
}

void tile_value_rows(const ValueRows& v) {
  alignas(64) std::uint16_t p[kSlabRows * kDepth];
  alignas(64) std::uint16_t values[2][kDepth * kLanes];
  for (int first = 0; first < v.rows; first += kSlabRows) {
    const int rows = std::min(kSlabRows, v.rows - first);
    for (int from = 0; from < v.keys; from += kDepth) {
      const int keys = std::min(kDepth, v.keys - from), depth = round_up(keys, kTileSteps);
      round_rows(v.p + first * v.ldp + from, v.ldp, rows, keys, depth, p);
      for (int n = 0; n < v.d / kLanes; n += 2) {
        const bool two = n + 1 < v.d / kLanes;
        gather(v, from, keys, depth, n, values[0]);
        if (two) gather(v, from, keys, depth, n + 1, values[1]);
        product(p, rows, depth, values[0], values[1], two, v.o + first * v.ldo + n * kLanes, v.ldo,
                true);
      }
    }
  }
}

}  // namespace amx
}  // namespace forerun
