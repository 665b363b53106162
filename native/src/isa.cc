#include "forerun/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace forerun {
namespace {

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(unsigned leaf, unsigned subleaf = 0) {
  Cpuid r;
  if (leaf <= __get_cpuid_max(0, nullptr)) __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

bool bit(unsigned word, int n) { return (word >> n) & 1u; }

std::uint64_t xcr0() {
  if (!bit(cpuid(1).ecx, 27)) return 0;  // OSXSAVE: XGETBV would fault without it
  std::uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

bool made_by_intel() {
  const Cpuid vendor = cpuid(0);
  return vendor.ebx == 0x756e6547 && vendor.edx == 0x49656e69 && vendor.ecx == 0x6c65746e;
}

bool request_tile_permission() {
  const char* assume = std::getenv("FORERUN_AMX_ASSUME_PERMISSION");
  if (assume != nullptr && std::strcmp(assume, "1") == 0) return true;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Level {
  const char* name;
  const Kernels* (*kernels)(bool);  // null: not built
  std::string (*obstacle)(const CpuFeatures&);
};

std::string avx2_obstacle(const CpuFeatures& c) {
  if (!c.avx2) return "CPUID: the processor has no AVX2 with FMA";
  if (!c.os_avx) return "XCR0: the operating system does not save AVX registers";
  return "";
}

std::string avx512_obstacle(const CpuFeatures& c) {
  if (!c.avx512) return "CPUID: the processor has no AVX-512 F, BW, DQ and VL";
  if (!c.os_avx512) return "XCR0: the operating system does not save AVX-512 registers";
  return avx2_obstacle(c);
}

std::string avx512_bf16_obstacle(const CpuFeatures& c) {
  if (!c.avx512_bf16) return "CPUID: the processor has no AVX512-BF16";
  return avx512_obstacle(c);
}

std::string amx_obstacle(const CpuFeatures& c) {
  if (!c.amx) return "CPUID: the processor has no AMX-TILE with AMX-BF16";
  if (!c.os_amx) return "XCR0: the operating system does not save AMX tiles";
  if (!c.amx_palette) return "palette: CPUID leaf 1D offers no palette 1 with eight tiles of 1 KiB";
  if (!c.amx_permission) return "permission: arch_prctl(ARCH_REQ_XCOMP_PERM) was refused";
  return avx512_bf16_obstacle(c);
}

std::string no_obstacle(const CpuFeatures&) { return ""; }

#ifdef FORERUN_HAVE_AMX
constexpr auto kAmx = &kernels_amx;
#else
constexpr const Kernels* (*kAmx)(bool) = nullptr;
#endif
#ifdef FORERUN_HAVE_AVX512_BF16
constexpr auto kAvx512Bf16 = &kernels_avx512_bf16;
#else
constexpr const Kernels* (*kAvx512Bf16)(bool) = nullptr;
#endif
#ifdef FORERUN_HAVE_AVX512
constexpr auto kAvx512 = &kernels_avx512;
#else
constexpr const Kernels* (*kAvx512)(bool) = nullptr;
#endif
#ifdef FORERUN_HAVE_AVX2
constexpr auto kAvx2 = &kernels_avx2;
#else
constexpr const Kernels* (*kAvx2)(bool) = nullptr;
#endif

constexpr Level kLevels[] = {
    {"amx", kAmx, amx_obstacle},
    {"avx512_bf16", kAvx512Bf16, avx512_bf16_obstacle},
    {"avx512", kAvx512, avx512_obstacle},
    {"avx2", kAvx2, avx2_obstacle},
    {"scalar", &kernels_scalar, no_obstacle},
};

}  // namespace

CpuFeatures detect_cpu() {
  CpuFeatures c;
  const Cpuid one = cpuid(1), seven = cpuid(7), seven_one = cpuid(7, 1);
  const std::uint64_t saved = xcr0();
  c.x86_64_v2 = bit(one.ecx, 9) && bit(one.ecx, 19) && bit(one.ecx, 20) && bit(one.ecx, 23);
  c.avx2 = bit(seven.ebx, 5) && bit(one.ecx, 12);
  c.os_avx = (saved & 0x6) == 0x6;
  c.avx512 = bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  c.os_avx512 = (saved & 0xe6) == 0xe6;
  c.avx512_bf16 = seven.eax >= 1 && bit(seven_one.eax, 5);
  c.slow_bf16_products = made_by_intel();
  c.amx = bit(seven.edx, 24) && bit(seven.edx, 22);
  c.os_amx = (saved & 0x60000) == 0x60000;
  const Cpuid palettes = cpuid(0x1d), palette = cpuid(0x1d, 1);
  c.amx_palette = palettes.eax >= 1 && (palette.eax & 0xffff) >= 8192 && (palette.ebx >> 16) >= 8;
  c.amx_permission = c.amx && c.os_amx && c.amx_palette && request_tile_permission();
  return c;
}

std::vector<IsaLevel> isa_levels(const CpuFeatures& cpu) {
  std::vector<IsaLevel> levels;
  for (const Level& level : kLevels) {
    const std::string reason = level.kernels == nullptr
                                   ? "build: the compiler that built this module lacks it"
                                   : level.obstacle(cpu);
    levels.push_back({level.name, reason.empty(), reason});
  }
  return levels;
}

std::string select_isa(const CpuFeatures& cpu, const std::string& forced) {
  std::string names;
  for (const IsaLevel& level : isa_levels(cpu)) {
    const bool slow = cpu.slow_bf16_products && level.name == "avx512_bf16";
    if (forced.empty() && level.available && !slow) return level.name;
    if (forced == level.name) {
      if (level.available) return level.name;
      throw std::invalid_argument("ISA level '" + forced + "' cannot run here (" + level.reason +
                                  "); unset FORERUN_ISA to take the best that can");
    }
    names += (names.empty() ? "" : ", ") + level.name;
  }
  throw std::invalid_argument("ISA level '" + forced + "' is unknown; the levels are " + names);
}

const Kernels* kernels_for(const std::string& name, bool bf16) {
  for (const Level& level : kLevels) {
    if (name == level.name && level.kernels != nullptr) return level.kernels(bf16);
  }
  throw std::invalid_argument("ISA level '" + name + "' is unknown or not built");
}

}  // namespace forerun
