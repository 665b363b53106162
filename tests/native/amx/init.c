/* PID 1 of the emulated machine: loads amxon.ko, runs /job with its arguments (one per line in
 * /job.args), prints "EXIT <code>" on the serial line and powers off. Built static. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  mkdir("/dev", 0755);
  mkdir("/proc", 0755);
  mkdir("/sys", 0755);
  mkdir("/tmp", 0777);
  mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
  mount("proc", "/proc", "proc", 0, 0);
  mount("sysfs", "/sys", "sysfs", 0, 0);
  int tty = open("/dev/ttyS0", O_RDWR);
  if (tty >= 0) {
    dup2(tty, 0);
    dup2(tty, 1);
    dup2(tty, 2);
  }
  int module = open("/amxon.ko", O_RDONLY);
  if (syscall(SYS_finit_module, module, "", 0) != 0) {
    perror("amxon.ko");
    goto off;
  }

  static char args[65536];
  char* argv[256] = {"/job"};
  int argc = 1;
  FILE* f = fopen("/job.args", "r");
  for (char* p = args; f && argc < 255 && fgets(p, sizeof args - (p - args), f);
       p += strlen(p) + 1) {
    p[strcspn(p, "\n")] = 0;
    argv[argc++] = p;
  }
  printf("BEGIN\n");
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    execv("/job", argv);
    perror("execv /job");
    _exit(127);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  printf("\nEXIT %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  fflush(stdout);
off:
  sync();
  sleep(1);
  reboot(RB_POWER_OFF);
  for (;;) sleep(1);
}
