/* Turns the AMX tile state on in XCR0. Bochs emulates AMX but not XSAVE's XFD, and Linux only
 * enables tiles where XFD exists; so the kernel is booted with clearcpuid=amx_tile and this
 * module sets the two XCR0 bits. Tile registers are then NOT saved across context switches:
 * run one single-threaded AMX program at a time. */
#include <linux/module.h>
#include <linux/smp.h>

static void enable_tiles(void* unused) {
  u32 lo, hi;

  asm volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  lo |= 0x60000; /* XTILECFG | XTILEDATA */
  asm volatile("xsetbv" : : "a"(lo), "d"(hi), "c"(0));
}

static int __init amxon_init(void) {
  on_each_cpu(enable_tiles, NULL, 1);
  return 0;
}
module_init(amxon_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("enable AMX tile state under an emulator without XFD");
