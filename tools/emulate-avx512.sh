#!/usr/bin/env bash
#
# emulate-avx512.sh - run a Linux x86-64 program on an emulated CPU that has
# AVX-512 (F CD DQ BW VL), AVX512_VNNI and AVX512_BF16.
#
# Why: the AVX-512 kernels have to be executed in tests also where the CPU has
# no AVX-512. qemu's TCG does not emulate AVX-512; Bochs does. So this script
# builds Bochs from Debian's source package, boots a Debian kernel in it with
# an initramfs that holds the program, and passes the program's stdout, stderr
# and exit status on. There is no BIOS, disk or boot loader: Bochs puts kernel
# and initramfs straight into RAM, and a 64 KiB ROM assembled here jumps to
# the kernel.
#
# The first run downloads and builds everything into
# ${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}/avx512-emulator (some minutes);
# later runs are quiet and only add the boot, 5 to 10 s. One emulated CPU runs
# 100 to 200 million instructions a second, a 512-bit float FMA takes 0.4 us.

set -euo pipefail

readonly recipe=1     # raise it whenever what setup() makes changes
readonly suite=trixie # first Debian release whose Bochs knows AVX512_BF16

usage() {
  cat <<'EOF'
Usage: emulate-avx512.sh [OPTION]... BINARY [ARG]...
       emulate-avx512.sh --setup

Runs BINARY (an x86-64 ELF file, best linked with -static) on an emulated CPU
with AVX-512, in an empty system: only BINARY, the shared libraries it needs
and the files named by --file are there. BINARY starts in an empty writable
folder. The exit status is BINARY's (128 + N after signal N), or 125 if the
emulation itself failed.

  --cpu NAME        CPU to emulate (default sapphire-rapids):
                      sapphire-rapids  AVX-512 with VNNI, BF16 and FP16
                      tigerlake        AVX-512 with VNNI
                      icelake          AVX-512 with VNNI
                      skylake-x        AVX-512 F CD DQ BW VL only
                      haswell, zen     AVX2, no AVX-512
                    or any model that Bochs lists (bochs --help cpu)
  --without FEATURE take a feature away from that CPU, by Bochs' name for it,
                    such as avx512bf16 or avx512vnni; can be repeated
  --env K=V         set an environment variable; can be repeated
  --file HOST:GUEST copy the file or folder HOST to the absolute path GUEST;
                    can be repeated
  --memory MIB      the guest's memory (default: by the files' size, >= 1024)
  --verbose         show the guest kernel's messages on stderr at the end
  --setup           only build what is missing
EOF
}

say() { printf 'emulate-avx512: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 125
}

# ---------------------------------------------------------------- setup, once

need_commands() {
  local pair missing=()
  for pair in g++:g++ make:make as:binutils objcopy:binutils readelf:binutils \
    xz:xz-utils zstd:zstd; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  if ((${#missing[@]})); then
    say "installing ${missing[*]}"
    { apt-get -qq update &&
      DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
        --no-install-recommends "${missing[@]}"; } >&2 ||
      die "please install: ${missing[*]}"
  fi
}

# An apt configuration of our own that knows only $suite, from the mirror that
# the host's apt already uses for its own release.
private_apt() {
  local dir=$1 codename mirror signed=
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && printf %s "${VERSION_CODENAME:-}")
  mirror=$(apt-get update --print-uris 2>/dev/null |
    sed -nE "s#^'(.*)/dists/($codename|stable)/InRelease'.*#\1#p" | head -n 1)
  [[ -n $mirror ]] || die "no apt source for Debian $codename found"
  if [[ -r /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
    signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
  fi
  mkdir -p "$dir"/{state/lists/partial,cache/archives/partial,parts}
  : >"$dir/state/status"
  printf "%s $signed $mirror $suite main\n" deb deb-src >"$dir/sources.list"
  cat >"$dir/apt.conf" <<EOF
Dir::State "$dir/state";
Dir::State::status "$dir/state/status";
Dir::Cache "$dir/cache";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "$dir/parts";
APT::Sandbox::User "";
EOF
  export APT_CONFIG=$dir/apt.conf
  apt-get -qq update >&2
}

# edit FILE FROM TO: replaces the first text FROM; it must be there.
edit() {
  from=$2 to=$3 perl -0777 -pi -e \
    's/\Q$ENV{from}\E/$ENV{to}/ or die "$ARGV is not as expected\n"' "$1"
}

build_bochs() { # into the current folder
  say "building Bochs"
  apt-get -qq source --download-only --tar-only bochs >&2
  mkdir src
  tar -xf bochs_*.orig.tar.* -C src --strip-components=1
  cd src
  # stdout is the guest's stdout (port 0xe9), file 3 its stderr (port 0xea).
  edit main.cc $'void bx_print_header()\n{' $'void bx_print_header()\n{\n  return;'
  edit iodev/unmapped.cc '    case 0xed: // Dummy' '    case 0xea: {
      char c = (char) value;
      if (write(3, &c, 1) != 1) BX_ERROR(("cannot pass stderr on"));
      break;
    }
    case 0xed: // Dummy'
  # optramimage needs RAM that is one piece.
  edit memory/memory_stub.cc '  if (0) {
    // all guest memory' '  if (guest == host) {
    // all guest memory'
  # VCVTNE2PS2BF16 takes wrong lanes of its first source, and loads from memory
  # as if its mask were of 32-bit lanes; VCVTNEPS2BF16 clears the lanes that a
  # merging mask has to keep.
  edit cpu/avx/avx512_bf16.cc 'convert_ne_fp32_to_bfloat16(op1.vmm32u(n));' \
    'convert_ne_fp32_to_bfloat16(op1.vmm32u(n - DWORD_ELEMENTS(len)));'
  edit cpu/decoder/ia_opcodes_evex.def \
    'LOAD_BROADCAST_MASK_VectorD, &BX_CPU_C::VCVTNE2PS2BF16_MASK' \
    'LOAD_BROADCAST_VectorD, &BX_CPU_C::VCVTNE2PS2BF16_MASK'
  edit cpu/avx/avx512_bf16.cc \
    'simd_pblendw(&BX_READ_AVX_REG(i->dst()), &dst, opmask, num_elements);' \
    'for (unsigned n=0; n < num_elements; n++)
      if (! (opmask & (1u << n))) dst.vmm16u(n) = BX_READ_AVX_REG(i->dst()).vmm16u(n);'
  # VPCONFLICT leaves out the lane before, and compares with lanes that it has
  # already replaced by their results.
  local letter element bits
  while read -r letter element bits; do
    edit cpu/simd_int.h "i<index-1; i++) {
    if (op->vmm${bits}u(" "i<index; i++) {
    if (op->vmm${bits}u("
    edit cpu/avx/avx512_bitalg.cc "n=0; n < ${element}_ELEMENTS(len); n++) {
    op.vmm${bits}u(n) = simd_pconflict$letter(" "n=${element}_ELEMENTS(len); n-- > 0;) {
    op.vmm${bits}u(n) = simd_pconflict$letter("
  done <<<$'d DWORD 32\nq QWORD 64'
  # VRSQRT14 is wrong for 2 to an odd power.
  local index
  for index in 'fraction >> 8' '(Bit32u)fraction >> 8'; do
    edit cpu/avx/avx512_rsqrt14.cc "  if (fraction)
    fraction = rsqrt_table[$index];" "  if (fraction || rsqrt_table == rsqrt14_table0)
    fraction = rsqrt_table[$index];"
  done
  {
    nice ./configure --with-nogui --disable-plugins --disable-docbook \
      --disable-show-ips --enable-cpu-level=6 --enable-x86-64 --enable-avx \
      --enable-evex --enable-all-optimizations CFLAGS=-O3 CXXFLAGS=-O3 &&
      nice make -j2
  } >../build.log 2>&1 || {
    tail -n 20 ../build.log >&2
    die "building Bochs failed"
  }
  cd ..
  cp src/bochs bochs
  strip bochs
  rm -rf src build.log bochs_*
}

# Leaves the kernel as an image for address 0x1000000, its entry point, and
# its setup header, which the boot parameters repeat.
fetch_kernel() {
  local package setup_sects offset length
  say "fetching a kernel"
  package=$(apt-cache depends linux-image-cloud-amd64 |
    sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
  apt-get -qq download "$package" >&2
  dpkg-deb --fsys-tarfile "$package"_*.deb |
    tar -xO --wildcards './boot/vmlinuz-*' >vmlinuz
  number() { od -An -v -t "u$2" -j "$1" -N "$2" "${3:-vmlinuz}" | tr -d ' '; }
  setup_sects=$(number $((0x1f1)) 1)
  offset=$(((setup_sects + 1) * 512 + $(number $((0x248)) 4)))
  length=$(($(number $((0x24c)) 4) - 4)) # without the size at the end
  tail -c +$((offset + 1)) vmlinuz | head -c "$length" >payload || true
  case $(number 0 4 payload) in
  $((0xfd2fb528))) zstd -qdc payload >vmlinux ;;
  $((0x587a37fd))) xz -dc payload >vmlinux ;;
  *) die "the kernel is compressed in an unknown way" ;;
  esac
  readelf -h vmlinux | sed -n 's/.*Entry point address: *//p' >entry
  objcopy -O binary vmlinux kernel.bin
  head -c $((0x202 + $(number $((0x201)) 1))) vmlinuz >header.bin
  rm -f "$package"_*.deb vmlinuz vmlinux payload
}

fetch_busybox() { # only for its cpio
  apt-get -qq download busybox-static >&2
  dpkg-deb --fsys-tarfile busybox-static_*.deb |
    tar -xO --wildcards './*bin/busybox' >busybox
  chmod +x busybox
  rm -f busybox-static_*.deb
}

build_init() {
  cat >init.c <<'EOF'
/* The guest's first process: runs the job, passes its output on, ends Bochs. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static char job[1 << 20], buf[1 << 16];
static char *list[1 << 16];

static void end(int status) {
  const char *p;
  printf("\n@@exit %d\n", status); /* on the console, a file on the host */
  fflush(stdout);
  tcdrain(1);
  for (p = "Shutdown"; *p; ++p) outb(*p, 0x8900);
  for (;;) pause();
}

int main(void) {
  /* /job: the number of variables, the variables, the arguments, each with a
     zero byte after it */
  char *p = job, *e, **args;
  int fd, st = 0, k, n, out[2], err[2];
  long r;
  pid_t child;
  struct pollfd in[2];
  mount("proc", "/proc", "proc", 0, 0);
  mount("sys", "/sys", "sysfs", 0, 0);
  mount("dev", "/dev", "devtmpfs", 0, 0);
  mkdir("/dev/shm", 01777);
  mount("tmp", "/dev/shm", "tmpfs", 0, 0);
  for (fd = 0; fd < 3; ++fd) close(fd);
  open("/dev/null", O_RDONLY);
  open("/dev/ttyS0", O_WRONLY | O_NOCTTY);
  dup(1);
  fd = open("/job", O_RDONLY);
  r = read(fd, job, sizeof job);
  if (iopl(3) || r <= 0 || r == sizeof job || pipe(out) || pipe(err)) end(125);
  close(fd);
  n = atoi(p);
  p += strlen(p) + 1;
  for (e = job + r, k = 0; p < e; p += strlen(p) + 1, ++k) {
    if (k == n) list[k++] = NULL;
    list[k] = p;
  }
  args = list + n + 1;
  child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    dup2(err[1], 2);
    for (fd = 3; fd < 16; ++fd) close(fd);
    chdir("/work");
    execve(args[0], args, list);
    fprintf(stderr, "exec %s: %s\n", args[0], strerror(errno));
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  in[0].fd = out[0];
  in[1].fd = err[0];
  in[0].events = in[1].events = POLLIN;
  while (in[0].fd >= 0 || in[1].fd >= 0) {
    poll(in, 2, -1);
    for (k = 0; k < 2; ++k) {
      if (in[k].fd < 0 || !in[k].revents) continue;
      r = read(in[k].fd, buf, sizeof buf);
      if (r > 0) outsb(0xe9 + k, buf, r);
      else in[k].fd = -1;
    }
  }
  while (waitpid(child, &st, 0) < 0 && errno == EINTR) continue;
  end(WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st));
}
EOF
  g++ -x c -static -O2 -s -w -o init init.c
  rm init.c
}

write_rom_source() {
  cat >rom.S <<'EOF'
# The firmware: from the reset vector to long mode, then into the kernel by the
# 64-bit Linux boot protocol. --defsym gives ENTRY, MEMORY (MiB), INITRD and
# INITRD_SIZE; header.bin and cmdline are files.
        .set    base, 0xffff0000        # where this ROM is
        .set    tables, 0x10000         # six page tables
        .set    boot_params, 0x90000
        .text
        .code16
rom:
start16:
        cli
        movb    $2, %al                 # A20 on
        outb    %al, $0x92
        lgdtl   %cs:(gdt_pointer - rom)
        movl    %cr0, %eax
        orl     $1, %eax
        movl    %eax, %cr0
        ljmpl   $0x08, $(base + start32 - rom)
        .code32
start32:
        movw    $0x18, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    $0x8000, %esp
        cld
        movl    $tables, %edi           # map 4 GiB to itself
        xorl    %eax, %eax
        movl    $(6 * 4096 / 4), %ecx
        rep stosl
        movl    $(tables + 0x1003), tables
        movl    $(tables + 0x2003), tables + 0x1000
        movl    $(tables + 0x3003), tables + 0x1008
        movl    $(tables + 0x4003), tables + 0x1010
        movl    $(tables + 0x5003), tables + 0x1018
        movl    $0x83, %eax             # pages of 2 MiB
        movl    $(tables + 0x2000), %edi
        movl    $2048, %ecx
1:      movl    %eax, (%edi)
        addl    $0x200000, %eax
        addl    $8, %edi
        loop    1b
        movl    $(base + params - rom), %esi
        movl    $boot_params, %edi
        movl    $(params_end - params), %ecx
        rep movsb
        movl    $tables, %eax
        movl    %eax, %cr3
        movl    $0x20, %eax             # CR4.PAE
        movl    %eax, %cr4
        movl    $0xc0000080, %ecx       # EFER.LME
        rdmsr
        orl     $0x100, %eax
        wrmsr
        movl    $0x80000011, %eax       # CR0.PG, ET, PE
        movl    %eax, %cr0
        ljmpl   $0x10, $(base + start64 - rom)
        .code64
start64:
        movl    $boot_params, %esi
        movl    $ENTRY, %eax
        jmp     *%rax

        .balign 8
gdt:    .quad   0
        .quad   0x00cf9b000000ffff      # 0x08: 32-bit code
        .quad   0x00af9b000000ffff      # 0x10: 64-bit code
        .quad   0x00cf93000000ffff      # 0x18: data
gdt_pointer:
        .word   gdt_pointer - gdt - 1
        .long   base + gdt - rom

        .balign 16
params: .org    params + 0x1e8
        .byte   2                       # entries of the memory map
        .org    params + 0x1f1          # the kernel's header, but for
        .incbin "header.bin", 0x1f1, 0x210 - 0x1f1
        .byte   0xff                    # the loader's type,
        .incbin "header.bin", 0x211, 0x218 - 0x211
        .long   INITRD, INITRD_SIZE     # the initramfs
        .incbin "header.bin", 0x220, 0x228 - 0x220
        .long   boot_params + 0x1000    # and the command line
        .incbin "header.bin", 0x22c
        .org    params + 0x2d0          # the memory map
        .quad   0, 0x9f000
        .long   1
        .quad   0x100000, (MEMORY - 1) * 0x100000
        .long   1
        .org    params + 0x1000
        .incbin "cmdline"
        .byte   0
params_end:
        .org    rom + 0xfff0            # the reset vector
        .code16
        jmp     start16
        .org    rom + 0x10000
EOF
}

setup() {
  local tmp lock failed
  [[ -e $home/ready ]] && return
  [[ $(uname -m) == x86_64 ]] || die "runs on x86-64 only"
  mkdir -p "$cache"
  exec {lock}>"$cache/lock"
  flock "$lock"
  if [[ ! -e $home/ready ]]; then
    say "setting up $home (once, some minutes)"
    rm -rf "$cache"/setup.* # of setups that were killed
    need_commands
    tmp=$(mktemp -d "$cache/setup.XXXXXX")
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$tmp'" EXIT
    set +e # not "( ... ) || die", in which -e would not work
    (
      set -e
      cd "$tmp"
      private_apt "$tmp/apt"
      mkdir kit
      cd kit
      fetch_kernel
      fetch_busybox
      build_init
      write_rom_source
      build_bochs
      : >ready
    )
    failed=$?
    set -e
    ((failed == 0)) || die "setup failed"
    rm -rf "$home"
    mv "$tmp/kit" "$home"
    rm -rf "$tmp"
    trap - EXIT
    say "ready"
  fi
  exec {lock}>&-
}

# -------------------------------------------------------------------- one run

# fill_root ROOT ARG...: makes the folder ROOT, which the guest will see.
fill_root() {
  local root=$1 pair host guest lib
  shift
  mkdir -p "$root"/{bin,dev,proc,sys,tmp,work}
  chmod 1777 "$root/tmp"
  cp "$home/init" "$root/init"
  cp "$binary" "$root/bin/${binary##*/}"
  chmod +x "$root/bin/${binary##*/}"
  if readelf -lW "$binary" | grep -q INTERP; then
    while IFS= read -r lib; do
      mkdir -p "$root${lib%/*}"
      cp -L "$lib" "$root$lib"
    done < <(ldd "$binary" | grep -o '/[^ ]*' | sort -u)
  fi
  for pair in "${files[@]}"; do
    host=${pair%:*} guest=${pair##*:}
    [[ -e $host ]] || die "no such file or folder: $host"
    [[ $guest == /* ]] || die "not an absolute path: $guest"
    if [[ -d $host ]]; then
      mkdir -p "$root$guest"
      cp -RL -- "$host/." "$root$guest/"
    else
      mkdir -p "$root${guest%/*}"
      cp -L -- "$host" "$root$guest"
    fi
  done
  printf '%s\0' "${#env[@]}" "${env[@]}" "/bin/${binary##*/}" "$@" >"$root/job"
}

write_bochsrc() {
  cat <<EOF
config_interface: textconfig
display_library: nogui
cpu: model=$model, count=1, ips=200000000, reset_on_triple_fault=0, ignore_bad_msrs=1${without:+, exclude_features="$without"}
memory: guest=$memory, host=$memory
romimage: file=rom.bin
vgaromimage: file=vga.bin
optramimage1: file=$home/kernel.bin, address=0x1000000
optramimage2: file=initrd, address=$initrd
vga: extension=none, update_freq=1
pci: enabled=0
boot: floppy
com1: enabled=1, mode=file, dev=console.log
port_e9_hack: enabled=1
clock: sync=none, time0=$(date +%s)
log: bochs.log
panic: action=fatal
error: action=report
info: action=report
EOF
}

main() {
  local model=sapphire-rapids without='' verbose=0 only_setup=0 memory=0
  local env=(PATH=/bin HOME=/work TMPDIR=/tmp) files=()
  local cache home binary run='' pid='' size status
  local initrd=0x8000000 # above the kernel's image

  while (($#)); do
    case $1 in
    --cpu | --without | --env | --file | --memory)
      (($# > 1)) || die "$1 needs a value"
      case $1 in
      --cpu) model=$2 ;;
      --without) without+=${without:+,}$2 ;;
      --env) env+=("$2") ;;
      --file) files+=("$2") ;;
      --memory) memory=$2 ;;
      esac
      shift 2
      ;;
    --verbose) verbose=1 && shift ;;
    --setup) only_setup=1 && shift ;;
    --help | -h) usage && exit ;;
    --) shift && break ;;
    -*) die "unknown option $1 (try --help)" ;;
    *) break ;;
    esac
  done
  case $model in
  sapphire-rapids) model=sapphire_rapids ;;
  icelake) model=corei7_icelake_u ;;
  skylake-x) model=corei7_skylake_x ;;
  haswell) model=corei7_haswell_4770 ;;
  zen) model=ryzen ;;
  esac

  cache=${ROPEWALK_CACHE:-$HOME/.cache/ropewalk}/avx512-emulator
  home=$cache/v$recipe
  if ((!only_setup)); then
    (($#)) || die "no program given (try --help)"
    [[ -f $1 ]] || die "no such file: $1"
  fi
  setup
  if ((only_setup)); then exit; fi
  home=$(realpath "$home")
  binary=$(realpath "$1")
  shift

  run=$(mktemp -d "${TMPDIR:-/tmp}/emulate-avx512.XXXXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$run'" EXIT
  fill_root "$run/root" "$@"
  cd "$run"
  (cd root && find . | "$home/busybox" cpio -o -H newc 2>/dev/null) >initrd
  rm -rf root
  size=$(stat -c %s initrd)
  if ((memory == 0)); then memory=$((1024 + 4 * (size >> 20))); fi
  ((memory <= 3072 && memory >= 256)) ||
    die "cannot give the guest $memory MiB of memory (256 to 3072 are possible)"

  # clearcpuid=580: FSRM without ERMS, as Bochs has it, breaks memmove in some
  # kernels. reboot=t: a panic ends in a triple fault, and that ends Bochs.
  printf %s "console=ttyS0,115200 quiet rdinit=/init panic=-1 reboot=t" \
    " nokaslr mitigations=off acpi=off nosmp no5lvl clearcpuid=580" \
    " tsc=reliable no_timer_check lpj=100000 audit=0 apparmor=0 cryptomgr.notests" \
    " initcall_blacklist=trace_eval_init,load_system_certificate_list" >cmdline
  cp "$home/header.bin" "$home/rom.S" .
  as --64 --defsym ENTRY="$(<"$home/entry")" --defsym MEMORY="$memory" \
    --defsym INITRD=$initrd --defsym INITRD_SIZE="$size" -o rom.o rom.S
  objcopy -O binary -j .text rom.o rom.bin
  head -c 2048 /dev/zero >vga.bin
  write_bochsrc >bochsrc

  "$home/bochs" -q -f bochsrc 3>&2 2>bochs.err </dev/null &
  pid=$!
  trap 'kill "$pid"; wait "$pid"; exit 143' TERM
  trap 'kill "$pid"; wait "$pid"; exit 130' INT
  wait "$pid" || true # it never ends with 0
  [[ -e console.log ]] || : >console.log
  status=$(sed -n 's/^@@exit \([0-9]*\).*/\1/p' console.log | tail -n 1)
  if ((verbose)) || [[ -z $status ]]; then cat console.log >&2; fi
  if [[ -z $status ]]; then
    grep -v '^==' bochs.err | tail -n 5 >&2
    die "the emulation ended before the program did"
  fi
  exit "$status"
}

main "$@"
