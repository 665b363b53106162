// Instruction set levels: which the processor and the system can run, and why not.
#pragma once

#include <string>
#include <vector>

#include "forerun/kernels.h"

namespace forerun {

// What the processor reports and the operating system allows.
struct CpuFeatures {
  bool x86_64_v2 = false;    // CPUID: SSSE3, SSE4.1, SSE4.2 and POPCNT, which NumPy needs
  bool avx2 = false;         // CPUID: AVX2 and FMA
  bool os_avx = false;       // XCR0: the system saves YMM registers
  bool avx512 = false;       // CPUID: AVX-512 F, BW, DQ, VL
  bool os_avx512 = false;    // XCR0: the system saves ZMM and mask registers
  bool avx512_bf16 = false;  // CPUID: AVX512-BF16
  // VDPBF16PS multiplies fewer pairs than FMA does with weights widened on the
  // way: assumed of all Intel's, since a Xeon of the fifth generation took 1.2
  // to 1.4 times as long for 8 to 64 rows (docs/benchmarks).
  bool slow_bf16_products = false;
  bool amx = false;             // CPUID: AMX-TILE and AMX-BF16
  bool os_amx = false;          // XCR0: the system saves tiles
  bool amx_palette = false;     // CPUID leaf 1D: palette 1 with eight tiles of 1 KiB
  bool amx_permission = false;  // arch_prctl(ARCH_REQ_XCOMP_PERM) was granted
};

// Asks the processor and the system; requests the permission for tiles, which
// holds for the whole process, so call it before other threads start.
// FORERUN_AMX_ASSUME_PERMISSION=1 takes that one permission as granted.
CpuFeatures detect_cpu();

struct IsaLevel {
  std::string name;
  bool available;
  std::string reason;  // the gate that failed, or empty
};

// All levels, best first.
std::vector<IsaLevel> isa_levels(const CpuFeatures& cpu);

// The name of the best available level, or of `forced` if not empty. Where its
// products are slow, avx512_bf16 is only taken if it is forced.
// Throws std::invalid_argument for an unknown level or one that cannot run here.
std::string select_isa(const CpuFeatures& cpu, const std::string& forced);

// The kernels of a level that is available.
const Kernels* kernels_for(const std::string& level, bool bf16);

}  // namespace forerun
