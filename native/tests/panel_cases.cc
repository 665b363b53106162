// The two products of attention: panels of blocks, and values key by key.
#include <limits>

#include "cases.h"
#include "forerun/packed.h"

namespace forerun {
namespace {

constexpr int kMaxRows = 70, kMaxBlocks = 7;

// A block in the precision of the KV cache. The half pair behind an odd depth is NaN.
struct Block {
  Block(bool bf16, int k, Random& random) : bytes(kLanes * 2 * sizeof(float) * (k + 1), 0xff) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < k; ++i) {
        const float x = round_to_bf16(random.next());
        const std::uint16_t half = float_to_bf16(x);
        if (bf16) {
          std::memcpy(&bytes[2 * bf16_block_index(lane, i)], &half, sizeof half);
        } else {
          std::memcpy(&bytes[4 * f32_block_index(lane, i)], &x, sizeof x);
        }
      }
    }
  }
  std::vector<unsigned char> bytes;
};

void panel_case(const Level& level, int k, int blocks, bool accumulate, Report& report) {
  Random random(static_cast<std::uint32_t>(k * 16 + blocks));
  std::vector<Block> made;
  std::vector<const void*> pointers;
  for (int n = 0; n < blocks; ++n) made.emplace_back(level.bf16, k, random);
  // Backwards: blocks need not lie in order.
  for (int n = blocks - 1; n >= 0; --n) pointers.push_back(made[n].bytes.data());
  const std::size_t lda = k + 3, ldc = blocks * kLanes + 5;
  const std::vector<float> a = random.floats(kMaxRows * lda);
  const std::vector<float> start = random.floats((kMaxRows + 1) * ldc);
  const auto run = [&](const Kernels& kernels, int first, int rows) {
    std::vector<float> c(start.begin() + first * ldc, start.begin() + (first + rows + 1) * ldc);
    kernels.panel(
        {a.data() + first * lda, lda, rows, pointers.data(), blocks, k, c.data(), ldc, accumulate});
    return c;
  };
  const std::string what = level.name + " panel k=" + std::to_string(k) +
                           " blocks=" + std::to_string(blocks) + (accumulate ? " add" : "");
  std::vector<float> alone;
  for (int row = 0; row < kMaxRows; ++row) {
    const std::vector<float> mine = run(level.kernels, row, 1), scalar = run(level.scalar, row, 1);
    report.check(close(mine.data(), scalar.data(), mine.size(), 1e-5f),
                 what + " row=" + std::to_string(row) + ": differs from scalar");
    alone.insert(alone.end(), mine.begin(), mine.begin() + ldc);
  }
  for (const int rows : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 25, 33, 64, 70}) {
    const int first = kMaxRows - rows;
    const std::vector<float> c = run(level.kernels, first, rows);
    const bool same =
        same_bits(c.data(), alone.data() + first * ldc, rows * ldc * sizeof(float)) &&
        same_bits(c.data() + rows * ldc, start.data() + kMaxRows * ldc, ldc * sizeof(float));
    report.check(same, what + " rows=" + std::to_string(rows) + ": differs from rows alone");
  }
}

void value_case(const Level& level, int keys, int d, Report& report) {
  Random random(static_cast<std::uint32_t>(keys * 1000 + d));
  // Three units of d / 16 blocks over 16 tokens each, in one piece as in the cache.
  const std::size_t element = level.bf16 ? 2 : 4, block_bytes = element * kLanes * kLanes;
  std::vector<std::vector<unsigned char>> units(3);
  for (auto& unit : units) {
    for (int n = 0; n < d / kLanes; ++n) {
      const Block block(level.bf16, kLanes, random);
      unit.insert(unit.end(), block.bytes.begin(), block.bytes.begin() + block_bytes);
    }
  }
  std::vector<const void*> pointers;
  std::vector<std::int32_t> lanes;
  for (int key = 0; key < keys; ++key) {
    pointers.push_back(units[random.below(3)].data());
    lanes.push_back(random.below(kLanes));
  }
  constexpr int rows = 9;
  const std::size_t ldp = keys + 2, ldo = d + 4;
  const std::vector<float> p = random.floats(rows * ldp), start = random.floats(rows * ldo);
  const auto run = [&](const Kernels& kernels, int first, int count, std::vector<float>& o) {
    kernels.value_rows({p.data() + first * ldp, ldp, count, pointers.data(), lanes.data(), keys, d,
                        o.data() + first * ldo, ldo});
  };
  std::vector<float> together = start, alone = start, scalar = start;
  run(level.kernels, 0, rows, together);
  run(level.scalar, 0, rows, scalar);
  for (int row = 0; row < rows; ++row) run(level.kernels, row, 1, alone);
  const std::string what =
      level.name + " value_rows keys=" + std::to_string(keys) + " d=" + std::to_string(d);
  report.check(close(together.data(), scalar.data(), scalar.size(), 1e-5f),
               what + ": differs from scalar");
  report.check(same_bits(together, alone), what + ": differs from rows alone");
}

}  // namespace

void panel_cases(const Level& level, Report& report) {
  for (const int k : {1, 5, 16, 64}) {
    for (int blocks = 1; blocks <= kMaxBlocks; ++blocks) {
      panel_case(level, k, blocks, false, report);
      panel_case(level, k, blocks, true, report);
    }
  }
  for (const int keys : {0, 1, 5, 16, 33}) {
    for (const int d : {16, 32, 64, 96}) value_case(level, keys, d, report);
  }
}

}  // namespace forerun
